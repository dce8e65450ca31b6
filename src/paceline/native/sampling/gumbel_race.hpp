// The token that wins at a position, from a row of logits and the position's noise: what
// `paceline/noise.py` and `paceline/sampling.py` find in numpy, in one pass or two over the row.

#pragma once

#include <cstdint>

#include "sampling/noise.hpp"

namespace paceline {

// What a request asks of distributions; no truncation is top_k 0, top_p 1 and log_min_p -infinity.
struct Choice {
    double temperature, top_p, log_min_p;
    int64_t top_k;
};

// The token of the largest logit / temperature - log E among those that truncation leaves.
// -1, undecided, where rounding might decide, which is next to never, and where the row holds NaN or
// nothing finite: numpy settles the one and names the other. Without AVX-512 no nucleus is decided.
template <class Number>
int64_t gumbel_argmax(const Number* logits, int64_t size, const Choice& choice, const NoiseKey& key);

extern template int64_t gumbel_argmax(const float*, int64_t, const Choice&, const NoiseKey&);
extern template int64_t gumbel_argmax(const double*, int64_t, const Choice&, const NoiseKey&);

}  // namespace paceline
