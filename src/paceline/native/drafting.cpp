#include "drafting.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "pool.hpp"

namespace paceline {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// A token so many nats below the likeliest wins against it once in 1,000 times.
constexpr float kHopeless = 7;

// 16 numbers from `i` on, `other` for those from `count` on.
Vec some(const float* at, int64_t i, int64_t count, float other) {
    if (i + kLanes <= count) return load(at + i);
    Vec out = all(other);
    for (int64_t lane = 0; lane < count - i; ++lane) out[lane] = at[i + lane];
    return out;
}

// A logit and where it stands.
struct Place {
    float logit = kNone;
    int32_t index = 0;

    bool before(const Place& other) const {
        return logit > other.logit || (logit == other.logit && logit > kNone && index < other.index);
    }
};

}  // namespace

void put_together(Joint joint, int64_t count, int64_t width, const Operand& a, const Operand& b,
                  Rows<float> out) {
    const auto together = [joint](Vec x, Vec y) {
        if (joint == Joint::silu) return x / (exponential(-x) + 1.0f);
        return joint == Joint::sum ? x + y : x * y;
    };
    each(count, count > 16, [&](int64_t r) {
        const float *x = a.row(r, width), *y = b.row(r, width);
        int64_t d = 0;
        for (; d + kLanes <= width; d += kLanes) {
            store(out[r] + d, together(load(x + d), load(y + d)));
        }
        for (; d < width; ++d) out[r][d] = together(all(x[d]), all(y[d]))[0];
    });
}

Likeliest likeliest(const float* logits, int64_t count) {
    Vec best = all(kNone), next = all(kNone);  // of each lane
    IntVec at = {}, next_at = {};
    for (int64_t i = 0; i < count; i += kLanes) {
        const Vec x = some(logits, i, count, kNone);
        const IntVec here = IntVec{} + int32_t(i), higher = x > best, between = x > next;
        next_at = higher ? at : (between ? here : next_at);
        next = higher ? best : (between ? x : next);
        at = higher ? here : at;
        best = higher ? x : best;
    }
    Place first = {}, second = {};
    for (int lane = 0; lane < kLanes; ++lane) {
        for (const Place& place : {Place{best[lane], at[lane] + lane},
                                   Place{next[lane], next_at[lane] + lane}}) {
            if (place.before(first)) {
                second = first;
                first = place;
            } else if (place.before(second)) {
                second = place;
            }
        }
    }
    Vec total = {};
    for (int64_t i = 0; i < count; i += kLanes) {
        const Vec x = some(logits, i, count, kNone);
        total += x == kNone ? all(0.0f) : exponential(x - first.logit);
    }
    const float share = 1.0f / sum(total);
    const bool none = second.logit == kNone;
    return {{first.index, share},
            {second.index, none ? 0.0f : share * exponential(second.logit - first.logit)}};
}

void perturb(float* logits, int64_t count, const int32_t* ids, const Noise& noise) {
    thread_local std::vector<int32_t> places, names;
    thread_local std::vector<float> kept, logarithms;
    thread_local Least room;
    Vec most = all(kNone);
    for (int64_t i = 0; i < count; i += kLanes) {
        const Vec x = some(logits, i, count, kNone);
        most = x > most ? x : most;
    }
    const float highest = largest(most);
    const float lowest = highest - kHopeless / noise.sharpness;
    places.clear();
    names.clear();
    kept.clear();
    reaching(logits, count, lowest, [&](int32_t place) {
        places.push_back(place);
        names.push_back(ids[place]);
        kept.push_back(logits[place]);
    });
    std::fill_n(logits, count, kNone);
    logarithms.resize(names.size());
    log_noise(noise.key, names.data(), int64_t(names.size()), room, logarithms.data());
    for (size_t k = 0; k < places.size(); ++k) {
        logits[places[k]] = (kept[k] - highest) * noise.sharpness - logarithms[k];
    }
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
                Vec mixed = {};
                for (int64_t j = 0; j < slots; ++j) {
                    mixed += load(qkv[first + j] + value + d) * weights[j];
                }
                store(to + d, mixed / total);
            }
        }
    });
}

}  // namespace paceline
