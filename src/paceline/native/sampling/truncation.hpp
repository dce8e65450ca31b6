// Truncation: min-p, top-k and top-p (nucleus).

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/vectors.hpp"

namespace paceline {

// A row of logits over a vocabulary.
template <class Number>
struct Logits {
    const Number* at;
    int64_t size;
};

// Logits over the temperature, the largest 0. The peak is taken out first, so that no temperature
// makes infinity of it.
struct Scale {
    double peak, temperature;

    double operator()(double logit) const { return (logit - peak) / temperature; }
};

// Bounds on the tokens that remain: logits not below `floor`, and above `above`; scaled not below
// `lowest`.
template <class Number>
struct Kept {
    Number floor = -std::numeric_limits<Number>::infinity();
    Number above = floor;
    double lowest = -std::numeric_limits<double>::infinity();

    bool operator()(Number logit) const { return logit >= floor && logit > above; }
};

enum class Place { inside, outside, unclear };

// Whether a token is in the nucleus: the tokens before it have less than `top_p` of the mass from
// `floor` up. Unclear near the border, since sums are of float32 exponentials, and at extreme
// temperatures.
template <class Number>
Place in_nucleus(const Logits<Number>& row, const Scale& scale, Number floor, int64_t token,
                 double top_p) {
    constexpr double kRough = 1e-5;
    constexpr Number kEndless = std::numeric_limits<Number>::infinity();
    constexpr int64_t kTogether = 64 * kLanes;  // summed in float32
    if (scale.temperature < 1e-3 || scale.temperature > 1e30) return Place::unclear;
    const Number peak = Number(scale.peak), chosen = row.at[token];
    const float rate = float(1 / scale.temperature);
    double mass = 0, before = 0;
    int64_t same = 0;
    for (int64_t first = 0; first < row.size; first += kTogether) {
        Vec all_of = zeros(), likelier = zeros();
        for (int64_t i = first; i < std::min(first + kTogether, row.size); i += kLanes) {
            float scaled[kLanes], kept[kLanes], above[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) {
                const Number x = i + lane < row.size ? row.at[i + lane] : -kEndless;
                scaled[lane] = float(x - peak) * rate;
                kept[lane] = x >= floor && i + lane < row.size ? 1.0f : 0.0f;
                above[lane] = x > chosen ? kept[lane] : 0.0f;
                same += x == chosen;
            }
            const Vec weight = exponential(load(scaled));
            all_of += weight * load(kept);
            likelier += weight * load(above);
        }
        mass += sum(all_of);
        before += sum(likelier);
    }
    const double goal = top_p * mass, error = kRough * goal;
    if (before > goal + error) return Place::outside;
    // Of equals the lower ids come first; numpy decides if that matters.
    before += double(same - 1) * std::exp(scale(chosen));
    return before < goal - error ? Place::inside : Place::unclear;
}

}  // namespace paceline
