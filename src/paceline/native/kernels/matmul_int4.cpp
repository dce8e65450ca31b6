// Matmul with int4 weights, for drafters, which read few weights often.

#include "kernels/quantize.hpp"

namespace paceline {

#ifndef PACELINE_INT8

void matmul_int4(const MatmulOp&, int64_t, const Input&, Rows<const float>, const Output&, Scratch&) {}

#else

namespace {

constexpr int kTogether = 8;  // rows that meet a weight when it is read
constexpr int kAhead = 2048;  // prefetch distance in bytes

using Results = Vec[kTogether][2];

// N quantized rows times a block of 16 matrix rows, group by group in order.
template <int N>
void one_block(const Matrix& matrix, int64_t block, const QuantizedSlice& x, Results& out, int place) {
    const int64_t groups = matrix.inputs / kGroup, width = matrix.inputs;
    const uint8_t* weights = matrix.weights + block * width * kLanes / 2;
    const _Float16* steps = matrix.steps + block * groups * kLanes;
    const __m512i low_half = _mm512_set1_epi8(15);
    __m512 total[N];
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) total[r] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; ++g) {
        const QuantizedGroup* rows = x.group(g);
        __m512i sum[N];
#pragma GCC unroll 8
        // Takes away what adding 8 to weights added: a sixteenth of what adding 128 does.
        for (int r = 0; r < N; ++r) sum[r] = _mm512_set1_epi32(rows[r].minus >> 4);
#pragma GCC unroll 2
        for (int k = 0; k < kGroup / 8; ++k) {
            const uint8_t* at = weights + (g * (kGroup / 8) + k) * 64;
            _mm_prefetch(at + kAhead, _MM_HINT_T0);
            const __m512i both = _mm512_loadu_si512(at);
            const __m512i low = _mm512_and_si512(both, low_half);
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
#pragma GCC unroll 8
            for (int r = 0; r < N; ++r) {
                const int8_t* numbers = rows[r].numbers + k * 4;
                sum[r] = _mm512_dpbusd_epi32(sum[r], low, four(numbers));
                sum[r] = _mm512_dpbusd_epi32(sum[r], high, four(numbers + kGroup / 2));
            }
        }
        const __m512 unit = __m512(load(steps + g * kLanes));
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(rows[r].scale), unit);
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), scale, total[r]);
        }
    }
    for (int r = 0; r < N; ++r) {
        out[r][place] = settled(Vec(total[r]));
        if (matrix.bias) out[r][place] += load(matrix.bias + block * kLanes);
    }
}

}  // namespace

void matmul_int4(const MatmulOp& op, int64_t rows, const Input& x, Rows<const float> residual,
                  const Output& out, Scratch& scratch) {
    const Quantizer quantized(op, rows, x, scratch);
    pairs(op, rows, out, [=, &op](const Pair& pair) {
        by_rows<kTogether>(int(rows), [&](auto n, int begin) {
            const QuantizedSlice some = quantized.from(begin);
            Results results;
            for (int b = 0; b < 2; ++b) one_block<n>(op.matrix, pair.blocks[b], some, results, b);
            for (int r = 0; r < n; ++r) {
                const float* more = residual ? residual[begin + r] : nullptr;
                pair.leave(op, results[r], more, begin + r);
            }
        });
    });
}

#endif

}  // namespace paceline
