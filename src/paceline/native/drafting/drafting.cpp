#include "drafting/drafting.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sampling/top_k.hpp"
#include "threads/pool.hpp"

namespace paceline {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// A token so many nats below the argmax wins against it once in 1,000 times.
constexpr float kHopeless = 7;

constexpr int kChains = 4;  // of sums, since one waits for itself

float highest_of(const float* logits, int64_t count) {
    Vec most = all(kNone);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const Vec x = load(logits + i);
        most = larger(x, most);
    }
    float out = largest(most);
    for (; i < count; ++i) out = std::max(out, logits[i]);
    return out;
}

// Sums e^(x - highest).
float total(const float* logits, int64_t count, float highest) {
    const auto shares = [highest](const float* at) {
        const Vec x = load(at);
        return select(x == all(kNone), zeros(), exponential(x - highest));
    };
    Vec sums[kChains];
    std::fill_n(sums, kChains, zeros());
    int64_t i = 0;
    for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
        for (int chain = 0; chain < kChains; ++chain) sums[chain] += shares(logits + i + chain * kLanes);
    }
    for (; i + kLanes <= count; i += kLanes) sums[0] += shares(logits + i);
    if (i < count) {
        float rest[kLanes];
        std::fill_n(std::copy(logits + i, logits + count, rest), kLanes - (count - i), kNone);
        sums[0] += shares(rest);
    }
    for (int chain = 1; chain < kChains; ++chain) sums[0] += sums[chain];
    return sum(sums[0]);
}

}  // namespace

void join(Joint joint, int64_t count, int64_t width, const Operand& a, const Operand& b,
                  Rows<float> out) {
    const auto together = [joint](Vec x, Vec y) {
        if (joint == Joint::silu) return silu(x);
        if (joint == Joint::tanh) return sigmoid(x * 2.0f) * 2.0f - 1.0f;
        if (joint == Joint::relu2) return relu2(x);
        if (joint == Joint::gate || joint == Joint::gate_row) return x * sigmoid(y);
        if (joint == Joint::gelu) return gelu(x);
        if (joint == Joint::exact_gelu) return exact_gelu(x);
        return joint == Joint::sum ? x + y : x * y;
    };
    each(count, count > 16, [&](int64_t r) {
        const float *x = a.row(r, width), *y = b.row(r, width);
        const bool one = joint == Joint::gate_row;
        int64_t d = 0;
        for (; d + kLanes <= width; d += kLanes) {
            store(out[r] + d, together(load(x + d), one ? all(y[0]) : load(y + d)));
        }
        for (; d < width; ++d) out[r][d] = together(all(x[d]), all(y[one ? 0 : d]))[0];
    });
}

TopTwo top_two(const float* logits, int64_t count) {
    int64_t at[2] = {};
    float best[2] = {count > 0 ? logits[0] : kNone, kNone};
    rank_top_k(logits, count, std::min<int64_t>(count, 2), at, best);
    const float share = 1.0f / total(logits, count, best[0]);
    const float next = best[1] == kNone ? 0.0f : share * exponential(best[1] - best[0]);
    return {{int32_t(at[0]), share}, {int32_t(at[1]), next}};
}

TopTwo top_two(const float* logits, int64_t count, const int32_t* ids, const Noise& noise) {
    thread_local std::vector<int32_t> places, names;
    thread_local std::vector<float> scores, logarithms;
    thread_local Least room;
    const float highest = highest_of(logits, count);
    places.clear();
    names.clear();
    reaching(logits, count, highest - kHopeless / noise.sharpness, [&](int32_t place) {
        places.push_back(place);
        names.push_back(ids[place]);
    });
    if (places.empty()) return {};
    scores.resize(places.size());
    logarithms.resize(places.size());
    log_noise(noise.key, names.data(), int64_t(names.size()), room, logarithms.data());
    for (size_t k = 0; k < places.size(); ++k) {
        scores[k] = (logits[places[k]] - highest) * noise.sharpness - logarithms[k];
    }
    TopTwo found = top_two(scores.data(), int64_t(scores.size()));
    found.first.index = places[found.first.index];
    found.second.index = places[found.second.index];
    return found;
}

void attend_slots(const Shape& shape, int64_t count, int64_t slots, Rows<const float> qkv,
                  Rows<float> out) {
    const int64_t width = shape.width, ratio = shape.heads / shape.kv_heads;
    const float factor = 1.0f / std::sqrt(float(width));
    each(count * shape.heads, count * slots > 16, [&](int64_t item) {
        const int64_t first = item / shape.heads * slots, head = item % shape.heads;
        const int64_t key = (shape.heads + head / ratio) * width;
        const int64_t value = key + shape.kv_heads * width;
        std::vector<float> weights(slots);
        for (int64_t i = 0; i < slots; ++i) {
            float highest = kNone, total = 0;
            for (int64_t j = 0; j < slots; ++j) {
                const float* asking = qkv[first + i] + head * width;
                weights[j] = dot(asking, qkv[first + j] + key, width) * factor;
                highest = std::max(highest, weights[j]);
            }
            for (float& weight : weights) total += weight = exponential(weight - highest);
            float* to = out[first + i] + head * width;
            for (int64_t d = 0; d < width; d += kLanes) {
                Vec mixed = zeros();
                for (int64_t j = 0; j < slots; ++j) {
                    mixed = fma(load(qkv[first + j] + value + d), weights[j], mixed);
                }
                store(to + d, mixed / total);
            }
        }
    });
}

}  // namespace paceline
