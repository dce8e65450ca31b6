#include <type_traits>

#include "rounded.hpp"

namespace paceline {

#ifndef PACELINE_PRODUCTS

bool has_int8_products() { return false; }
void int8_product(const Step&, int64_t, Rows<const float>, Rows<const float>, Rows<float>, Room&) {}

#else

namespace {

constexpr int kAhead = 8192;  // bytes of weights that are asked for before their use
constexpr int kTogether = 8;  // rows that meet a weight when it is read

// Results of some rows, for two blocks of 16 matrix rows.
using Results = Vec[kTogether][2];

// Adds products of unsigned numbers with four of a row. The instruction itself: compilers copy the
// sums about that they make of the intrinsic.
inline void add_products(__m512i& sum, __m512i weights, __m512i numbers) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(numbers));
}

// Products of N rounded rows with a pair of blocks: group by group, in order. Weights are asked for
// `ahead` bytes before their use, so that memory is read while numbers are multiplied.
template <int N, bool kOften>
void two_blocks(const Matrix& matrix, int64_t pair, const Rounded& x, int64_t ahead,
                Results& total) {
    const int64_t groups = matrix.inputs / kGroup, stride = matrix.inputs;
    const uint8_t* weights = matrix.weights + 2 * pair * stride * kLanes;
    const int8_t* numbers = x.numbers;
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) total[r][0] = total[r][1] = Vec{};
    for (int64_t g = 0; g < groups; ++g, numbers += kGroup) {
        __m512i sum[N][2];
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            // Takes away what adding 128 to weights added.
            sum[r][0] = sum[r][1] = _mm512_set1_epi32(x.minus[r * groups + g]);
        }
        // Not unrolled: the processor looks far enough ahead, and there is no register to spare.
#pragma GCC unroll 1
        for (int k = 0; k < kGroup / 4; ++k, weights += 128) {
            // Not read again before all the others: better not kept in the large cache.
            constexpr auto hint = kOften ? _MM_HINT_T0 : _MM_HINT_NTA;
            _mm_prefetch(weights + ahead, hint);
            _mm_prefetch(weights + ahead + 64, hint);
            const __m512i first = _mm512_loadu_si512(weights);
            const __m512i second = _mm512_loadu_si512(weights + 64);
#pragma GCC unroll 8
            for (int r = 0; r < N; ++r) {
                const __m512i y = four(numbers + r * stride + k * 4);
                add_products(sum[r][0], first, y);
                add_products(sum[r][1], second, y);
            }
        }
        // Totals stay in memory: sums are added to all the time, these once in a group.
        asm volatile("" ::"r"(total) : "memory");
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            const __m512 scale = _mm512_set1_ps(x.scales[r * groups + g]);
#pragma GCC unroll 2
            for (int b = 0; b < 2; ++b) {
                const __m512 whole = _mm512_cvtepi32_ps(sum[r][b]);
                total[r][b] = Vec(_mm512_fmadd_ps(whole, scale, __m512(total[r][b])));
            }
        }
    }
}

// What products are in the numbers that the matrix stands for.
void scale(const Matrix& matrix, const int64_t (&blocks)[2], int rows, Results& results) {
    for (int b = 0; b < 2; ++b) {
        const Vec scale = load(matrix.scales + blocks[b] * kLanes);
        for (int r = 0; r < rows; ++r) {
            results[r][b] = settled(results[r][b] * scale);
            if (matrix.bias) results[r][b] += load(matrix.bias + blocks[b] * kLanes);
        }
    }
}

}  // namespace

bool has_int8_products() { return true; }

void int8_product(const Step& step, int64_t rows, Rows<const float> x, Rows<const float> residual,
                  Rows<float> out, Room& room) {
    const RoundedRows rounded(step, rows, x, room);
    pairs(step, [=, &step](int64_t pair, const int64_t (&blocks)[2]) {
        by_rows<kTogether>(int(rows), [&](auto n, int begin) {
            const Rounded some = rounded.from(begin);
            // Later rows find their weights at hand, and ask for those of the next pair.
            const int64_t ahead = begin ? 2 * kLanes * step.matrix.inputs : kAhead;
            Results results;
            if (step.matrix.often) {
                two_blocks<n, true>(step.matrix, pair, some, ahead, results);
            } else {
                two_blocks<n, false>(step.matrix, pair, some, ahead, results);
            }
            scale(step.matrix, blocks, n, results);
            for (int r = 0; r < n; ++r) {
                const float* more = residual ? residual[begin + r] : nullptr;
                leave(step, blocks, results[r], more, out[begin + r]);
            }
        });
    });
}

#endif

}  // namespace paceline
