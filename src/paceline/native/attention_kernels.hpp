// Loops over keys and values that attention consists of.

#pragma once

#include <algorithm>
#include <limits>

#include "paths.hpp"
#include "vectors.hpp"

namespace paceline {

// Scores of N queries over the 32 keys of each of B blocks: one sum per key, over the width in order.
template <int N, int B, class Stored>
void block_scores(const float* queries, int width, const Stored* const* blocks, float* scores,
                  int stride) {
    Vec a[N][2 * B] = {};
    for (int d = 0; d < width; ++d) {
        Vec keys[2 * B];
        for (int b = 0; b < B; ++b) {
            keys[2 * b] = load(blocks[b] + d * kBlock);
            keys[2 * b + 1] = load(blocks[b] + d * kBlock + kLanes);
        }
        for (int r = 0; r < N; ++r) {
            const Vec q = all(queries[r * width + d]);
            for (int i = 0; i < 2 * B; ++i) a[r][i] += q * keys[i];
        }
    }
    for (int r = 0; r < N; ++r) {
        for (int i = 0; i < 2 * B; ++i) store(scores + r * stride + i * kLanes, a[r][i]);
    }
}

// The same over any number of blocks.
template <class Stored>
void all_scores(const float* queries, int count, int width, const Stored* const* blocks, int end,
                float* scores, int stride) {
    by_rows<6>(count, [&](auto n, int first) {
        const float* q = queries + first * width;
        float* to = scores + first * stride;
        constexpr int kTogether = n > 3 ? 1 : 2;  // sums enough to keep the processor busy
        int b = 0;
        for (; b + kTogether <= end; b += kTogether) {
            block_scores<n, kTogether>(q, width, blocks + b, to + b * kBlock, stride);
        }
        if (b < end) block_scores<n, 1>(q, width, blocks + b, to + b * kBlock, stride);
    });
}

// Adds V * 16 numbers of consecutive stored values, weighted, to N rows of `sums`, one by one in
// order.
template <int N, int V, class Stored>
void add_slice(const float* weights, int stride, const Stored* const* blocks, int count, int width,
               int at, float* sums) {
    Vec a[N][V];
    for (int r = 0; r < N; ++r) {
        for (int v = 0; v < V; ++v) a[r][v] = load(sums + r * width + at + v * kLanes);
    }
    for (int begin = 0; begin < count; begin += kBlock) {
        const Stored* value = blocks[begin / kBlock] + at;
        const int end = std::min(begin + kBlock, count);
        for (int j = begin; j < end; ++j, value += width) {
            Vec x[V];
            for (int v = 0; v < V; ++v) x[v] = load(value + v * kLanes);
            for (int r = 0; r < N; ++r) {
                const Vec w = all(weights[r * stride + j]);
                for (int v = 0; v < V; ++v) a[r][v] += w * x[v];
            }
        }
    }
    for (int r = 0; r < N; ++r) {
        for (int v = 0; v < V; ++v) store(sums + r * width + at + v * kLanes, a[r][v]);
    }
}

// The same over the whole width, a multiple of 16.
template <int N, class Stored>
void add_values(const float* weights, int stride, const Stored* const* blocks, int count,
                int width, float* sums) {
    int at = 0;
    for (; at + 4 * kLanes <= width; at += 4 * kLanes) {
        add_slice<N, 4>(weights, stride, blocks, count, width, at, sums);
    }
    for (; at < width; at += kLanes) {
        add_slice<N, 1>(weights, stride, blocks, count, width, at, sums);
    }
}

// Has numbers fetched that will be read soon.
template <class Stored>
void ask(const Stored* at, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / sizeof(Stored)) __builtin_prefetch(at + i);
}

// Makes weights of the first `count` scores: e to the power of each less the highest. Behind them
// stand zeros up to `end`.
struct Weights {
    float highest, sum;
};

inline Weights soften(float* scores, int count, int end) {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const int whole = (count + kLanes - 1) / kLanes * kLanes;
    for (int j = count; j < whole; ++j) scores[j] = kNone;
    for (int j = whole; j < end; ++j) scores[j] = 0;
    if (count == 0) return {kNone, 0};
    Vec top = load(scores);
    for (int j = kLanes; j < whole; j += kLanes) {
        const Vec x = load(scores + j);
        top = x > top ? x : top;
    }
    const float highest = largest(top);
    Vec total = {};
    for (int j = 0; j < whole; j += kLanes) {
        const Vec x = load(scores + j);
        const Vec weight = x == kNone ? all(0.0f) : exponential(x - highest);
        total += weight;
        store(scores + j, weight);
    }
    return {highest, sum(total)};
}

// What a chunk of keys comes to: per query its highest score, the sum of weights relative to it,
// and the weighted sum of values.
struct Partial {
    float *highest, *weight, *values;
};

// Joins the sums over a later chunk to those over earlier ones.
inline void merge(const Partial& into, const Partial& later, int queries, int width) {
    for (int r = 0; r < queries; ++r) {
        if (later.weight[r] == 0) continue;
        const float highest = std::max(into.highest[r], later.highest[r]);
        const float a = exponential(into.highest[r] - highest);
        const float b = exponential(later.highest[r] - highest);
        into.highest[r] = highest;
        into.weight[r] = into.weight[r] * a + later.weight[r] * b;
        float* x = into.values + r * width;
        const float* y = later.values + r * width;
        for (int d = 0; d < width; d += kLanes) {
            store(x + d, load(x + d) * a + load(y + d) * b);
        }
    }
}

}  // namespace paceline
