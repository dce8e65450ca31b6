// Matmul of rows by matrices in any format, with the norm before, the sum or gate after.
//
// A row's result is summed input by input, or group by group, in one order: it is bit-identical in
// any batch, on any number of threads and on every processor. Quantized matrices take activations
// quantized in groups of 32.

#pragma once

#include <cstdint>
#include <vector>

#include "kernels/formats.hpp"
#include "kernels/quantize.hpp"
#include "threads/pool.hpp"

namespace paceline {

// kClamped clamps both, and adds 1 to what it gates: see `clamped`.
enum class Gate : int32_t { kNone, kSilu, kGelu, kClamped, kRelu2 };


PACELINE_INLINE Vec active(Gate gate, const Vec& x) {
    if (gate == Gate::kRelu2) return relu2(x);
    return gate == Gate::kSilu ? silu(x) : gelu(x);
}

constexpr int kMostParts = 3;

// out = more + scale * (norm(x) * parts side by side), or gate(norm(x) * first) * (norm(x) * second).
struct MatmulOp {
    Matrix parts[kMostParts];  // of the same inputs
    int32_t count;
    Gate gate;
    float scale;
    const float* norm;  // [inputs], RMS norm of x before the matmul, or null
    float eps;

    int64_t outputs() const {
        if (gate != Gate::kNone) return parts[0].outputs;
        int64_t out = 0;
        for (int p = 0; p < count; ++p) out += parts[p].outputs;
        return out;
    }
};

// Memory reused from matmul to matmul.
struct Scratch {
    QuantizedRows quantized;
    std::vector<float> normed;  // [rows, inputs]
    std::vector<float> taken, inner, made;  // of one expert: rows in, between and out
};

//   x:     [rows, inputs]
//   more:  [rows, outputs], or none; may be `out`
//   out:   [rows, outputs]; quantized only if the outputs are whole groups
void matmul(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> more,
            const Output& out, Scratch& scratch);

// RMS norm factor of a row, without the weights.
float norm_factor(const float* x, int64_t width, float eps);

// Mean of a row.
float mean(const float* x, int64_t width);

}  // namespace paceline
