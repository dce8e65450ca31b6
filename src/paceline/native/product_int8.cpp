#include <type_traits>

#include "rounded.hpp"

namespace paceline {

#ifndef PACELINE_PRODUCTS

bool has_int8_products() { return false; }
void int8_product(const Step&, int64_t, Rows<const float>, Rows<const float>, Rows<float>, Room&) {}

#else

namespace {

constexpr int kAhead = 4096;  // bytes of weights that are asked for before their use
constexpr int kTogether = 8;  // rows up to which all meet a weight when it is read
constexpr int kSome = 5;      // of more, so many do at a time, each with two blocks: fewer loads

// Results of some rows, for two blocks of 16 matrix rows.
using Results = Vec[kTogether][2];

// Products of N rounded rows with kBlocks blocks of 16 matrix rows: group by group, in order. Weights
// are asked for `ahead` bytes before their use, so that memory is read while numbers are multiplied.
template <int N, int kBlocks, bool kOften>
void some_blocks(const Matrix& matrix, const int64_t* blocks, const Rounded& x, int64_t ahead,
                 Results& out, int place = 0) {
    const int64_t groups = matrix.inputs / kGroup, stride = matrix.inputs;
    const uint8_t* weights[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
        weights[b] = matrix.weights + blocks[b] * matrix.inputs * kLanes;
    }
    const int8_t* numbers = x.numbers;
    __m512 total[N][kBlocks];
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
#pragma GCC unroll 2
        for (int b = 0; b < kBlocks; ++b) total[r][b] = _mm512_setzero_ps();
    }
    for (int64_t g = 0; g < groups; ++g, numbers += kGroup) {
        __m512i sum[N][kBlocks];
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            // Takes away what adding 128 to weights added.
            const __m512i begin = _mm512_set1_epi32(x.minus[r * groups + g]);
#pragma GCC unroll 2
            for (int b = 0; b < kBlocks; ++b) sum[r][b] = begin;
        }
#pragma GCC unroll 2
        for (int k = 0; k < kGroup / 4; ++k) {
            const int64_t at = (g * (kGroup / 4) + k) * 64;
            // Not read again before all the others: better not kept in the large cache.
            constexpr auto hint = kOften ? _MM_HINT_T0 : _MM_HINT_NTA;
            __m512i w[kBlocks];
#pragma GCC unroll 2
            for (int b = 0; b < kBlocks; ++b) {
                _mm_prefetch(weights[b] + at + ahead, hint);
                w[b] = _mm512_loadu_si512(weights[b] + at);
            }
#pragma GCC unroll 8
            for (int r = 0; r < N; ++r) {
                const __m512i y = four(numbers + r * stride + k * 4);
#pragma GCC unroll 2
                for (int b = 0; b < kBlocks; ++b) sum[r][b] = _mm512_dpbusd_epi32(sum[r][b], w[b], y);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            const __m512 scale = _mm512_set1_ps(x.scales[r * groups + g]);
#pragma GCC unroll 2
            for (int b = 0; b < kBlocks; ++b) {
                total[r][b] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][b]), scale, total[r][b]);
            }
        }
    }
    for (int b = 0; b < kBlocks; ++b) {
        const Vec scale = load(matrix.scales + blocks[b] * kLanes);
        for (int r = 0; r < N; ++r) {
            out[r][place + b] = settled(Vec(total[r][b]) * scale);
            if (matrix.bias) out[r][place + b] += load(matrix.bias + blocks[b] * kLanes);
        }
    }
}

}  // namespace

bool has_int8_products() { return true; }

void int8_product(const Step& step, int64_t rows, Rows<const float> x, Rows<const float> residual,
                  Rows<float> out, Room& room) {
    const int64_t width = step.matrix.inputs;
    round_rows(step, rows, x, room);
    pairs(step, [&](const int64_t (&blocks)[2]) {
        const auto part = [&](auto n, int begin, auto wide) {
            const Rounded some = rounded(step, room, begin);
            Results results;
            const auto go = [&](auto often) {
                if constexpr (wide) {
                    // Later parts find their weights at hand, and ask for those of the next pair.
                    const int64_t pair = (step.gated ? 1 : 2) * kLanes * width;
                    const int64_t ahead = begin ? pair : kAhead;
                    some_blocks<n, 2, often>(step.matrix, blocks, some, ahead, results);
                } else {
                    some_blocks<n, 1, often>(step.matrix, blocks, some, kAhead, results);
                    some_blocks<n, 1, often>(step.matrix, blocks + 1, some, kAhead, results, 1);
                }
            };
            step.matrix.often ? go(std::true_type{}) : go(std::false_type{});
            for (int r = 0; r < n; ++r) {
                const float* more = residual ? residual[begin + r] : nullptr;
                leave(step, blocks, results[r], more, out[begin + r]);
            }
        };
        if (rows <= kTogether) {
            by_rows<kTogether>(int(rows), [&](auto n, int at) { part(n, at, std::false_type{}); });
        } else {
            by_rows<kSome>(int(rows), [&](auto n, int at) { part(n, at, std::true_type{}); });
        }
    });
}

#endif

}  // namespace paceline
