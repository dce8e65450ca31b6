// Rescoring of head preview logits (SVD-softmax, Shim et al. 2017): exact logits of the top k.

#pragma once

#include <cstdint>

#include "kernels/formats.hpp"

namespace paceline {

// Replaces the `best` largest of `count` logits by exact ones; of equal ones the first.
//   hidden: [head.inputs]
void rescore(const Matrix& head, const float* hidden, float* logits, int64_t count,
             int64_t best);

}  // namespace paceline
