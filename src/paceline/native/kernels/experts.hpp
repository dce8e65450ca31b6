// Mixtures of experts: which experts a row uses, and the sum of what they make of it.
//
// A row's experts are added in the order of their numbers, each product in canonical arithmetic, so
// that a row's result is bit-identical in any batch. An expert that no row uses is not read.

#pragma once

#include <vector>

#include "kernels/matmul.hpp"

namespace paceline {

struct Router {
    int32_t used;        // largest scores that count; 0: all above zero, RMS-normed
    int32_t sum_to_one;  // of the weights that are used
    int32_t sigmoid;     // scores are sigmoids; else their softmax
    int32_t groups, groups_used;  // of experts: those with the two best have the used ones
    float factor, eps;
    const float* norm;   // [experts], of the RMS norm
    const float* offset; // [experts], added to sigmoids to find the largest
};

struct Experts {
    std::vector<Matrix> gate, up, down;  // no gates: activation(x * up) * down
    Gate activation;
    bool every;  // reads all experts for all rows, to the same bits: what a saving is measured against
};

//   scores: [rows, experts]
//   out:    likewise, weights; 0 for experts that a row does not use. No number stays no number.
void route(const Router& router, int64_t rows, int64_t experts, Rows<const float> scores, Rows<float> out);

//   x, out:  [rows, width]
//   weights: [rows, experts]
//   more:    [rows, width], or none; not `out`
void mix(const Experts& of, int64_t rows, Rows<const float> x, Rows<const float> weights,
         Rows<const float> more, Rows<float> out, Scratch& scratch);

}  // namespace paceline
