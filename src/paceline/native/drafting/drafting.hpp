// Operations of drafter networks beside matmul and attention: elementwise, argmax and runner-up,
// attention among draft slots.

#pragma once

#include <cstdint>

#include "sampling/noise.hpp"
#include "kernels/attention.hpp"
#include "kernels/vectors.hpp"

namespace paceline {

// An operand: weights, indexed by r % `period`, or rows of a buffer, indexed by r / `repeat`.
struct Operand {
    Rows<const float> rows;
    int64_t repeat, period;
    const float* weights;  // [period, width], or null

    const float* row(int64_t r, int64_t width) const {
        return weights ? weights + r % period * width : rows[r / repeat];
    }
};

// silu, tanh, relu2, gelus: of the first alone; gate: the first times sigmoid of the second; gate_row:
// by the first number of a row of the second.
enum class Joint : int32_t {
    sum, product, silu, tanh, gate, gate_row, gelu, relu2, exact_gelu
};

void join(Joint joint, int64_t count, int64_t width, const Operand& a, const Operand& b,
                  Rows<float> out);

struct Candidate {
    int32_t index;
    float chance;  // its share of the softmax of all
};

// Argmax and runner-up; of equal ones the first. Where all others are -infinity the runner-up is
// any, with probability 0.
struct TopTwo {
    Candidate first, second;
};

TopTwo top_two(const float* logits, int64_t count);

// Gumbel noise of a token; none if `sharpness`, the inverse temperature, is 0.
struct Noise {
    NoiseKey key;
    float sharpness;
    int32_t unused;
};

// The same of noised logits; tokens with almost no chance to win are skipped.
TopTwo top_two(const float* logits, int64_t count, const int32_t* ids, const Noise& noise);

// Bidirectional attention among runs of `slots` rows.
//   qkv:  [count * slots, (heads + 2 * kv_heads) * width]
//   out:  [count * slots, heads * width]
void attend_slots(const Shape& shape, int64_t count, int64_t slots, Rows<const float> qkv,
                  Rows<float> out);

}  // namespace paceline
