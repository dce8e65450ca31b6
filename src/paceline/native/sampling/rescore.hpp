// Logits that a screen has previewed, the best few of them made exact (SVD-softmax, Shim et al.
// 2017): so most rows of an LM head are never read.

#pragma once

#include <cstdint>

#include "kernels/embeddings.hpp"

namespace paceline {

// Of one row of `count` logits puts exact ones in the place of the `best` largest; of equal ones
// those that come first are taken. The head has a row for every logit.
//   hidden: [head.width], a multiple of 16
void rescore(const Embeddings& head, const float* hidden, float* logits, int64_t count,
            int64_t best);

}  // namespace paceline
