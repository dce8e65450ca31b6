// Gumbel-max sampling at a position, from logits and noise, as `paceline/sampling` does in numpy.

#pragma once

#include <cstdint>

#include "sampling/noise.hpp"

namespace paceline {

// Sampling parameters; no truncation is top_k 0, top_p 1 and log_min_p -infinity.
struct Choice {
    double temperature, top_p, log_min_p;
    int64_t top_k;
};

// Token of the largest logit / temperature - log E that truncation retains; -1 for numpy to decide:
// near ties, NaN, nothing finite, and, without AVX-512, any nucleus.
template <class Number>
int64_t gumbel_argmax(const Number* logits, int64_t size, const Choice& choice, const NoiseKey& key);

extern template int64_t gumbel_argmax(const float*, int64_t, const Choice&, const NoiseKey&);
extern template int64_t gumbel_argmax(const double*, int64_t, const Choice&, const NoiseKey&);

}  // namespace paceline
