// What drafter networks need beside products and attention along visible: sums and products of rows,
// the top_two token, attention of a few rows over one another.

#pragma once

#include <cstdint>

#include "sampling/noise.hpp"
#include "kernels/attention.hpp"
#include "kernels/vectors.hpp"

namespace paceline {

// Rows that are put together with others: weights, of which row r takes row r % `period`, or rows
// of a buffer, of which it takes row r / `repeat`.
struct Operand {
    Rows<const float> rows;
    int64_t repeat, period;
    const float* weights;  // [period, width], or null

    const float* row(int64_t r, int64_t width) const {
        return weights ? weights + r % period * width : rows[r / repeat];
    }
};

enum class Joint : int32_t { sum, product, silu };  // silu: of the first alone

void join(Joint joint, int64_t count, int64_t width, const Operand& a, const Operand& b,
                  Rows<float> out);

struct Candidate {
    int32_t index;
    float chance;  // its share of the softmax of all
};

// The top_two, and the top_two of the others; of equal ones the first. Where all others are
// -infinity any of them may stand for those, with chance 0, as does the first itself if it is alone.
struct TopTwo {
    Candidate first, second;
};

TopTwo top_two(const float* logits, int64_t count);

// What tokens are drawn with: nothing if `sharpness`, one over the temperature, is 0.
struct Noise {
    NoiseKey key;
    float sharpness;
    int32_t unused;
};

// The same by logits times the sharpness and the Gumbel noise of their ids; those that have hardly a
// chance to win do not count.
TopTwo top_two(const float* logits, int64_t count, const int32_t* ids, const Noise& noise);

// Attention of runs of `slots` rows over one another, both ways.
//   qkv:  [count * slots, (heads + 2 * kv_heads) * width]
//   out:  [count * slots, heads * width]
void attend_slots(const Shape& shape, int64_t count, int64_t slots, Rows<const float> qkv,
                  Rows<float> out);

}  // namespace paceline
