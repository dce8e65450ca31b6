// Inner loops of attention: scores, softmax, weighted sums.

#pragma once

#include <algorithm>
#include <limits>

#include "threads/prefetch.hpp"
#include "kernels/visible_keys.hpp"
#include "kernels/vectors.hpp"

namespace paceline {

// Sums that registers hold: queries that share a load of keys or values, blocks of keys and vectors
// of values at once.
#if defined(PACELINE_512)
constexpr int kShare = 6, kAtOnce = 2, kWide = 4;
#else
constexpr int kShare = 3, kAtOnce = 1, kWide = 2;
#endif

// Keys and values as stored: float or Half.
inline void put(float x, float& to) { to = x; }
inline void put(float x, Half& to) { to = half(x); }

// Scores of N queries over the 32 keys of each of B blocks: one sum per key, over the width in
// order.
template <int N, int B, class Number>
void block_scores(const float* queries, int width, const Number* const* blocks, float* scores,
                  int stride, Prefetch<Number>& prefetch) {
    Vec a[N][2 * B];
    for (int r = 0; r < N; ++r) {
        for (int i = 0; i < 2 * B; ++i) a[r][i] = zeros();
    }
    auto next = prefetch;
    for (int d = 0; d < width; ++d) {
        next.step();
        Vec keys[2 * B];
        for (int i = 0; i < 2 * B; ++i) keys[i] = load(blocks[i / 2] + d * kBlock + i % 2 * kLanes);
        for (int r = 0; r < N; ++r) {
            const Vec q = all(queries[r * width + d]);
            for (int i = 0; i < 2 * B; ++i) a[r][i] = fma(q, keys[i], a[r][i]);
        }
    }
    prefetch = next;
    for (int r = 0; r < N; ++r) {
        for (int i = 0; i < 2 * B; ++i) store(scores + r * stride + i * kLanes, a[r][i]);
    }
}

// The same over any number of blocks.
template <class Number>
void all_scores(const float* queries, int count, int width, const Number* const* blocks, int end,
                float* scores, int stride, Prefetch<Number> prefetch = {}) {
    const int parts = (count + kShare - 1) / kShare;
    prefetch.within(int64_t{parts} * ((end + kAtOnce - 1) / kAtOnce) * width);
    by_rows<kShare>(count, [&](auto n, int first) {
        const float* q = queries + first * width;
        float* to = scores + first * stride;
        int b = 0;
        for (; b + kAtOnce <= end; b += kAtOnce) {
            block_scores<n, kAtOnce>(q, width, blocks + b, to + b * kBlock, stride, prefetch);
        }
        if (b < end) block_scores<n, 1>(q, width, blocks + b, to + b * kBlock, stride, prefetch);
    });
}

// Adds V * 16 numbers of consecutive stored values, weighted, to N rows of `sums`, one by one in
// order.
template <int N, int V, class Number>
void add_slice(const float* weights, int stride, const Number* const* blocks, int count, int width,
               int at, float* sums, Prefetch<Number>& prefetch) {
    auto next = prefetch;
    Vec a[N][V];
    for (int r = 0; r < N; ++r) {
        for (int v = 0; v < V; ++v) a[r][v] = load(sums + r * width + at + v * kLanes);
    }
    for (int begin = 0; begin < count; begin += kBlock) {
        const Number* value = blocks[begin / kBlock] + at;
        const int end = std::min(begin + kBlock, count);
        for (int j = begin; j < end; ++j, value += width) {
            next.step();
            Vec x[V];
            for (int v = 0; v < V; ++v) x[v] = load(value + v * kLanes);
            for (int r = 0; r < N; ++r) {
                const Vec w = all(weights[r * stride + j]);
                for (int v = 0; v < V; ++v) a[r][v] = fma(w, x[v], a[r][v]);
            }
        }
    }
    prefetch = next;
    for (int r = 0; r < N; ++r) {
        for (int v = 0; v < V; ++v) store(sums + r * width + at + v * kLanes, a[r][v]);
    }
}

// The same over the whole width, a multiple of 16, and any number of rows.
template <class Number>
void add_values(const float* weights, int rows, int stride, const Number* const* blocks, int count,
                int width, float* sums, Prefetch<Number> prefetch = {}) {
    const int slices = width / (kWide * kLanes) + width / kLanes % kWide;
    prefetch.within(int64_t{(rows + kShare - 1) / kShare} * slices * count);
    by_rows<kShare>(rows, [&](auto n, int first) {
        const float* w = weights + first * stride;
        float* to = sums + first * width;
        int at = 0;
        for (; at + kWide * kLanes <= width; at += kWide * kLanes) {
            add_slice<n, kWide>(w, stride, blocks, count, width, at, to, prefetch);
        }
        for (; at < width; at += kLanes) {
            add_slice<n, 1>(w, stride, blocks, count, width, at, to, prefetch);
        }
    });
}

constexpr float kNone = -std::numeric_limits<float>::infinity();  // the highest of no scores

// e to the power of `x - highest`, 0 for kNone, for x up to `highest`.
inline Vec weight(const Vec& x, const Vec& highest) {
    return select(x == all(kNone), zeros(), exponential(x - highest));
}

// The highest of the scores from `begin` to `count`; the first are kNone from here on, as are those
// up to whole vectors; zeros up to `end`.
inline float highest_score(float* scores, int begin, int count, int end) {
    const int whole = (count + kLanes - 1) / kLanes * kLanes;
    for (int j = 0; j < begin; ++j) scores[j] = kNone;
    for (int j = count; j < whole; ++j) scores[j] = kNone;
    for (int j = whole; j < end; ++j) scores[j] = 0;
    Vec top = all(kNone);
    for (int j = 0; j < whole; j += kLanes) top = larger(load(scores + j), top);
    return largest(top);
}

// Makes weights of the first `count` scores: e to the power of each less the highest. Gives their
// sum.
inline float soften(float* scores, int count, float highest) {
    Vec total = zeros();
    for (int j = 0; j < count; j += kLanes) {
        const Vec each = weight(load(scores + j), all(highest));
        total += each;
        store(scores + j, each);
    }
    return sum(total);
}

// Per query: highest score, sum of weights relative to it, weighted sum of values.
struct Partial {
    float *highest, *weight, *values;
};

// Combines chunks in order: the mean of values over all keys, [queries, width], replaces the first
// chunk's values. Sinks, a score of each query or null, come first and have no value. Overwrites
// `highest` and `weight`.
template <class Part>
void combine(int chunks, int queries, int width, const float* sinks, const Part& part) {
    for (int r = 0; r < queries; r += kLanes) {
        const Vec sink = sinks ? load(sinks + r) : all(kNone);
        Vec highest = sink;
        for (int c = 0; c < chunks; ++c) {
            highest = larger(load(part(c).highest + r), highest);
        }
        Vec total = weight(sink, highest);
        for (int c = 0; c < chunks; ++c) {
            const Vec factor = weight(load(part(c).highest + r), highest);
            total = fma(load(part(c).weight + r), factor, total);
            store(part(c).highest + r, factor);
        }
        for (int c = 0; c < chunks; ++c) {
            store(part(c).highest + r, load(part(c).highest + r) / total);
        }
    }
    const Partial first = part(0);
    for (int r = 0; r < queries; ++r) {
        float* to = first.values + r * width;
        for (int d = 0; d < width; d += kLanes) store(to + d, load(to + d) * first.highest[r]);
    }
    for (int c = 1; c < chunks; ++c) {
        const Partial later = part(c);
        for (int r = 0; r < queries; ++r) {
            const float share = later.highest[r];
            float* to = first.values + r * width;
            const float* more = later.values + r * width;
            for (int d = 0; d < width; d += kLanes) {
                store(to + d, fma(load(more + d), share, load(to + d)));
            }
        }
    }
}

}  // namespace paceline
