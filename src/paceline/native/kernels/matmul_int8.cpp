#include <algorithm>
#include <type_traits>

#include "kernels/quantize.hpp"

namespace paceline {

#ifndef PACELINE_INT8

bool has_int8_matmul() { return false; }
void matmul_int8(const MatmulOp&, int64_t, const Input&, Rows<const float>, const Output&, Scratch&) {}

#else

namespace {

// Sums must not leave their registers between calls.
#define PACELINE_INLINE __attribute__((always_inline))

constexpr int kAhead = 8192;  // prefetch distance in bytes
constexpr int kTogether = 12;  // rows that meet a weight when it is read: their sums fit registers

// Results of some rows, for two blocks of 16 matrix rows.
using Results = Vec[kTogether][2];

// Dot products of four. Inline asm, since compilers copy the accumulators of the intrinsic around.
inline void add_products(__m512i& sum, __m512i weights, __m512i numbers) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(numbers));
}

// Prefetch of weights. One pass over rows: a little ahead, not kept in the large cache (kAhead)
// unless reused soon (kSoon). Several turns at a pair of blocks: the next pair, in parts.
enum class Asks { kAhead, kSoon, kFirstTurn, kTurn };

template <Asks kAsks>
using As = std::integral_constant<Asks, kAsks>;

// Sums of N rows over a group, for a pair of blocks. Compilers keep an array of so many in memory.
template <int N>
struct Sums {
    Sums<N - 1> others;
    __m512i first, second;

    // Takes away what adding 128 to weights adds.
    PACELINE_INLINE void begin(const QuantizedGroup* rows) {
        others.begin(rows);
        first = second = _mm512_set1_epi32(rows[N - 1].minus);
    }

    // Four columns, from `at` on.
    PACELINE_INLINE void add(const __m512i (&weights)[2], const QuantizedGroup* rows, int at) {
        others.add(weights, rows, at);
        const __m512i y = four(rows[N - 1].numbers + at);
        add_products(first, weights[0], y);
        add_products(second, weights[1], y);
    }

    PACELINE_INLINE void end(const QuantizedGroup* rows, Results& total) const {
        others.end(rows, total);
        const __m512 scale = _mm512_set1_ps(rows[N - 1].scale);
        const auto scaled = [&](__m512i sum, Vec before) {
            return Vec(_mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, __m512(before)));
        };
        total[N - 1][0] = scaled(first, total[N - 1][0]);
        total[N - 1][1] = scaled(second, total[N - 1][1]);
    }
};

template <>
struct Sums<0> {
    void begin(const QuantizedGroup*) {}
    void add(const __m512i (&)[2], const QuantizedGroup*, int) {}
    void end(const QuantizedGroup*, Results&) const {}
};

// N quantized rows times a pair of blocks, group by group in order.
template <int N, Asks kAsks>
void two_blocks(const Matrix& matrix, int64_t pair, const QuantizedSlice& x, int64_t turn, int64_t turns,
                Results& total) {
    constexpr auto hint = kAsks == Asks::kAhead ? _MM_HINT_NTA : _MM_HINT_T0;
    const int64_t groups = matrix.inputs / kGroup, size = 2 * matrix.inputs * kLanes;
    const uint8_t* weights = matrix.weights + pair * size;
    const uint8_t* next = weights + size + turn * size / turns;
    std::fill_n(&total[0][0], 2 * N, Vec{});
    for (int64_t g = 0; g < groups; ++g) {
        const QuantizedGroup* rows = x.group(g);
        Sums<N> sums;
        sums.begin(rows);
        // Not unrolled: the processor looks far enough ahead, and there is no register to spare.
#pragma GCC unroll 1
        for (int k = 0; k < kGroup / 4; ++k, weights += 128) {
            if constexpr (kAsks != Asks::kTurn) {
                _mm_prefetch(weights + kAhead, hint);
                _mm_prefetch(weights + kAhead + 64, hint);
            }
            if constexpr (kAsks >= Asks::kFirstTurn) {
                _mm_prefetch(next, hint);
                next += 128 / turns;
            }
            const __m512i both[2] = {_mm512_loadu_si512(weights), _mm512_loadu_si512(weights + 64)};
            sums.add(both, rows, k * 4);
        }
        // Totals stay in memory: sums are added to all the time, these once in a group.
        asm volatile("" ::"r"(total) : "memory");
        sums.end(rows, total);
    }
}

// Applies scales and bias.
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

bool has_int8_matmul() { return true; }

void matmul_int8(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> residual,
                  const Output& out, Scratch& scratch) {
    const Quantizer quantized(op, rows, x, scratch);
    const int64_t turns = (rows + kTogether - 1) / kTogether;
    pairs(op, rows, out, [=, &op](const Pair& pair) {
        by_rows<kTogether>(int(rows), [&](auto n, int begin) {
            const QuantizedSlice some = quantized.from(begin);
            const int64_t turn = (begin * turns + rows - 1) / rows;
            Results results;
            const auto run = [&](auto asks) {
                two_blocks<n, asks>(op.matrix, pair.number, some, turn, turns, results);
            };
            if (turns == 1) {
                op.matrix.often ? run(As<Asks::kSoon>{}) : run(As<Asks::kAhead>{});
            } else {
                turn == 0 ? run(As<Asks::kFirstTurn>{}) : run(As<Asks::kTurn>{});
            }
            scale(op.matrix, pair.blocks, n, results);
            for (int r = 0; r < n; ++r) {
                const float* more = residual ? residual[begin + r] : nullptr;
                pair.leave(op, results[r], more, begin + r);
            }
        });
    });
}

#endif

}  // namespace paceline
