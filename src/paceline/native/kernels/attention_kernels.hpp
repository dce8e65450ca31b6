// Inner loops of attention: scores, softmax, weighted sums.

#pragma once

#include <algorithm>
#include <limits>

#include "threads/prefetch.hpp"
#include "kernels/kv_layout.hpp"

namespace paceline {

constexpr int kShare = 6;  // queries that share a load of keys or values
constexpr int kAtOnce = 2;  // blocks of keys: sums enough to keep busy

// Scores of N queries over the 32 keys of each of B blocks: one sum per key, over the width in
// order.
template <class Format, int N, int B>
void block_scores(const float* queries, int words, const typename Format::Number* const* blocks,
                  float* scores, int stride, Prefetch<typename Format::Number>& prefetch) {
    constexpr int kStep = kLanes * Format::kTogether;
    Vec a[N][2 * B] = {};
    auto next = prefetch;
    for (int d = 0; d < words; ++d) {
        next.step();
        typename Format::Vector keys[2 * B];
        for (int b = 0; b < B; ++b) {
            keys[2 * b] = Format::vector(blocks[b] + 2 * d * kStep);
            keys[2 * b + 1] = Format::vector(blocks[b] + (2 * d + 1) * kStep);
        }
        for (int r = 0; r < N; ++r) {
            const auto q = Format::every(queries[r * words + d]);
            for (int i = 0; i < 2 * B; ++i) a[r][i] = Format::add(a[r][i], q, keys[i]);
        }
    }
    prefetch = next;
    for (int r = 0; r < N; ++r) {
        for (int i = 0; i < 2 * B; ++i) store(scores + r * stride + i * kLanes, a[r][i]);
    }
}

// The same over any number of blocks.
template <class Format>
void all_scores(const float* queries, int count, int words,
                const typename Format::Number* const* blocks, int end, float* scores, int stride,
                Prefetch<typename Format::Number> prefetch = {}) {
    const int parts = (count + kShare - 1) / kShare;
    prefetch.within(int64_t{parts} * ((end + kAtOnce - 1) / kAtOnce) * words);
    by_rows<kShare>(count, [&](auto n, int first) {
        const float* q = queries + first * words;
        float* to = scores + first * stride;
        int b = 0;
        for (; b + kAtOnce <= end; b += kAtOnce) {
            block_scores<Format, n, kAtOnce>(q, words, blocks + b, to + b * kBlock, stride, prefetch);
        }
        if (b < end) {
            block_scores<Format, n, 1>(q, words, blocks + b, to + b * kBlock, stride, prefetch);
        }
    });
}

// Adds V * 16 numbers of consecutive stored values, weighted, to N rows of `sums`, one by one in
// order. `weights` are words.
template <class Format, int N, int V>
void add_slice(const float* weights, int stride, const typename Format::Number* const* blocks,
               int count, int width, int at, float* sums, Prefetch<typename Format::Number>& prefetch) {
    constexpr int kTogether = Format::kTogether;
    auto next = prefetch;
    Vec a[N][V];
    for (int r = 0; r < N; ++r) {
        for (int v = 0; v < V; ++v) a[r][v] = load(sums + r * width + at + v * kLanes);
    }
    for (int begin = 0; begin < count; begin += kBlock) {
        const auto* value = blocks[begin / kBlock] + kTogether * at;
        const int end = std::min(begin + kBlock, count);
        for (int j = begin; j < end; j += kTogether, value += kTogether * width) {
            next.step();
            typename Format::Vector x[V];
            for (int v = 0; v < V; ++v) x[v] = Format::vector(value + v * kTogether * kLanes);
            for (int r = 0; r < N; ++r) {
                const auto w = Format::every(weights[r * stride + j / kTogether]);
                for (int v = 0; v < V; ++v) a[r][v] = Format::add(a[r][v], w, x[v]);
            }
        }
    }
    prefetch = next;
    for (int r = 0; r < N; ++r) {
        for (int v = 0; v < V; ++v) store(sums + r * width + at + v * kLanes, a[r][v]);
    }
}

// The same over the whole width, a multiple of 16, and any number of rows.
template <class Format>
void add_values(const float* weights, int rows, int stride,
                const typename Format::Number* const* blocks, int count, int width, float* sums,
                Prefetch<typename Format::Number> prefetch = {}) {
    constexpr int kWide = 4;  // vectors of numbers at once
    const int slices = width / (kWide * kLanes) + width / kLanes % kWide;
    prefetch.within(int64_t{(rows + kShare - 1) / kShare} * slices * (count / Format::kTogether));
    by_rows<kShare>(rows, [&](auto n, int first) {
        const float* w = weights + first * stride;
        float* to = sums + first * width;
        int at = 0;
        for (; at + kWide * kLanes <= width; at += kWide * kLanes) {
            add_slice<Format, n, kWide>(w, stride, blocks, count, width, at, to, prefetch);
        }
        for (; at < width; at += kLanes) {
            add_slice<Format, n, 1>(w, stride, blocks, count, width, at, to, prefetch);
        }
    });
}

constexpr float kNone = -std::numeric_limits<float>::infinity();  // the highest of no scores

// e to the power of `x - highest`, 0 for kNone, for x up to `highest`.
inline Vec weight(Vec x, Vec highest) {
    return x == kNone ? Vec{} : exponential_of_negative(x - highest);
}

// The highest of the first `count` scores; pads with kNone to whole vectors, then zeros up to
// `end`.
inline float highest_score(float* scores, int count, int end) {
    const int whole = (count + kLanes - 1) / kLanes * kLanes;
    for (int j = count; j < whole; ++j) scores[j] = kNone;
    for (int j = whole; j < end; ++j) scores[j] = 0;
    Vec top = all(kNone);
    for (int j = 0; j < whole; j += kLanes) top = larger(load(scores + j), top);
    return largest(top);
}

// Makes weights of the first `count` scores: e to the power of each less the highest. Gives their
// sum.
inline float soften(float* scores, int count, float highest) {
    Vec total = {};
    int j = 0;
    for (; j + kLanes <= count; j += kLanes) {
        const Vec each = exponential_of_negative(load(scores + j) - all(highest));
        total += each;
        store(scores + j, each);
    }
    if (j < count) {
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
// chunk's values. Overwrites `highest` and `weight`.
template <class Part>
void combine(int chunks, int queries, int width, const Part& part) {
    for (int r = 0; r < queries; r += kLanes) {
        Vec highest = all(kNone), total = {};
        for (int c = 0; c < chunks; ++c) {
            const Vec x = load(part(c).highest + r);
            highest = x > highest ? x : highest;
        }
        for (int c = 0; c < chunks; ++c) {
            const Vec factor = weight(load(part(c).highest + r), highest);
            total += load(part(c).weight + r) * factor;
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
                store(to + d, load(to + d) + load(more + d) * share);
            }
        }
    }
}

}  // namespace paceline
