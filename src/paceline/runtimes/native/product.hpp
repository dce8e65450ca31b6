// Products of few rows with int8 matrices, and what stands around them in a decoder layer.
//
// Activations are rounded to int8 by groups of 64, each row by itself, and sums run over a row in
// one order. So a row's result is the same bits whatever rows it shares a pass with.

#pragma once

#include <cstdint>

namespace paceline {

constexpr int kGroup = 64;  // activations that share a scale

// A packed matrix of `outputs` rows, a multiple of 16, and `inputs` columns, a multiple of 64.
struct Matrix {
    int outputs, inputs;
    const int8_t* weights;  // [outputs / 16, inputs / 64, 16, 16, 4]: of 16 rows 4 columns each
    const int16_t* sums;    // [outputs / 16, inputs / 64, 16]: minus the weights of a group
    const float* scales;    // [outputs]
    const float* bias;      // [outputs], or null
};

// out = product(norm(x)) + residual, or with `gated`, where the matrix has gates in its upper and
// the others in its lower half, out = silu(gates) * others.
struct Step {
    Matrix matrix;
    const float* norm;  // [inputs], RMS norm of x before the product, or null
    float eps;
    bool gated;
};

// Whether this processor has the instructions; without them there is no product.
bool has_products();

//   x:        float32 [rows, inputs]
//   residual: float32 [rows, outputs], or null
//   out:      float32 [rows, outputs], half as wide if gated
void product(const Step& step, int64_t rows, const float* x, const float* residual, float* out);

}  // namespace paceline
