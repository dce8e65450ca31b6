// Logits of some tokens: the top k of a head preview (SVD-softmax, Shim et al. 2017), or those of
// the best clusters.

#pragma once

#include <cstdint>

#include "kernels/matmul.hpp"

namespace paceline {

// Replaces the `best` largest of `count` logits by exact ones; of equal ones the first.
//   hidden: [head.inputs]
void rescore(const Matrix& head, const float* hidden, float* logits, int64_t count,
             int64_t best);

// Logits of the tokens of the `best` clusters by score, of equal ones the first; those of others are
// minus infinity. Rows of the head are those of cluster after cluster, each in whole tiles.
//   hidden: [head.inputs]
//   scores: [clusters]
//   tokens: [clusters, size]
//   logits: [clusters * size]
void clustered(const Matrix& head, int64_t clusters, int64_t size, const int32_t* tokens,
               int64_t best, const float* hidden, const float* scores, float* logits,
               Scratch& scratch);

}  // namespace paceline
