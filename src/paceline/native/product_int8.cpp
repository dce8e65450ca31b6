#include <cstring>

#include "product.hpp"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#define PACELINE_PRODUCTS 1
#endif

namespace paceline {

#ifndef PACELINE_PRODUCTS

bool has_int8_products() { return false; }
void int8_product(const Step&, int64_t, Rows<const float>, Rows<const float>, Rows<float>, Room&) {}

#else

namespace {

constexpr int kAhead = 2048;  // bytes of weights that are asked for before their use
constexpr int kRows = 4;      // that share loads of weights

void round_row(const Step& step, const float* x, uint8_t* numbers, float* scales) {
    const int64_t width = step.matrix.inputs;
    const float norm = step.norm ? norm_factor(x, width, step.eps) : 1.0f;
    for (int64_t g = 0; g < width / kGroup; ++g) {
        Vec values[kGroup / kLanes];
        Vec largest = {};
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const int64_t at = g * kGroup + i * kLanes;
            Vec v = load(x + at);
            if (step.norm) v = v * norm * load(step.norm + at);
            values[i] = v;
            const Vec size = v < 0.0f ? -v : v;
            largest = size > largest ? size : largest;
        }
        const float most = _mm512_reduce_max_ps(__m512(largest));
        scales[g] = most / 127.0f;
        const float factor = most > 0 ? 127.0f / most : 0.0f;
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const __m512i whole = _mm512_cvtps_epi32(__m512(values[i] * factor));
            const __m512i shifted = _mm512_add_epi32(whole, _mm512_set1_epi32(128));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + g * kGroup + i * kLanes),
                             _mm512_cvtusepi32_epi8(shifted));
        }
    }
}

int32_t four(const uint8_t* numbers) {
    int32_t all;
    std::memcpy(&all, numbers, sizeof all);
    return all;
}

// Products of N rounded rows with two blocks of 16 matrix rows: group by group, in order.
template <int N, bool kOften>
void two_blocks(const Matrix& matrix, const int64_t (&blocks)[2], const uint8_t* numbers,
                const float* scales, Vec (&out)[kRows][2]) {
    const int64_t groups = matrix.inputs / kGroup, stride = matrix.inputs;
    const int8_t* weights[2];
    const int16_t* sums[2];
    for (int b = 0; b < 2; ++b) {
        weights[b] = matrix.weights + blocks[b] * matrix.inputs * kLanes;
        sums[b] = matrix.sums + blocks[b] * groups * kLanes;
    }
    __m512 total[N][2];
#pragma GCC unroll 4
    for (int r = 0; r < N; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; ++g, numbers += kGroup) {
        __m512i sum[N][2];
#pragma GCC unroll 2
        for (int b = 0; b < 2; ++b) {
            // 128 times minus the sum of weights takes away what adding 128 to numbers added.
            const __m256i minus =
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums[b] + g * kLanes));
            const __m512i begin = _mm512_slli_epi32(_mm512_cvtepi16_epi32(minus), 7);
#pragma GCC unroll 4
            for (int r = 0; r < N; ++r) sum[r][b] = begin;
        }
#pragma GCC unroll 4
        for (int k = 0; k < kGroup / 4; ++k) {
            const int64_t at = (g * (kGroup / 4) + k) * 64;
            // Not read again before all the others: better not kept in the large cache.
            constexpr auto hint = kOften ? _MM_HINT_T0 : _MM_HINT_NTA;
            _mm_prefetch(weights[0] + at + kAhead, hint);
            _mm_prefetch(weights[1] + at + kAhead, hint);
            const __m512i w0 = _mm512_loadu_si512(weights[0] + at);
            const __m512i w1 = _mm512_loadu_si512(weights[1] + at);
#pragma GCC unroll 4
            for (int r = 0; r < N; ++r) {
                const __m512i x = _mm512_set1_epi32(four(numbers + r * stride + k * 4));
                sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], x, w0);
                sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], x, w1);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < N; ++r) {
            const __m512 scale = _mm512_set1_ps(scales[r * groups + g]);
#pragma GCC unroll 2
            for (int b = 0; b < 2; ++b) {
                total[r][b] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][b]), scale, total[r][b]);
            }
        }
    }
    for (int b = 0; b < 2; ++b) {
        const Vec scale = load(matrix.scales + blocks[b] * kLanes);
        for (int r = 0; r < N; ++r) {
            out[r][b] = Vec(total[r][b]) * scale;
            if (matrix.bias) out[r][b] += load(matrix.bias + blocks[b] * kLanes);
        }
    }
}

}  // namespace

bool has_int8_products() { return true; }

void int8_product(const Step& step, int64_t rows, Rows<const float> x, Rows<const float> residual,
                  Rows<float> out, Room& room) {
    const int64_t width = step.matrix.inputs, groups = width / kGroup;
    room.numbers.resize(rows * width);
    room.scales.resize(rows * groups);
    each(rows, rows > 3, [&](int64_t r) {
        round_row(step, x[r], room.numbers.data() + r * width,
                  room.scales.data() + r * groups);
    });
    pairs(step, [&](const int64_t (&blocks)[2]) {
        by_rows<kRows>(int(rows), [&](auto n, int begin) {
            Vec results[kRows][2];
            const auto some = step.matrix.often ? two_blocks<n, true> : two_blocks<n, false>;
            some(step.matrix, blocks, room.numbers.data() + begin * width,
                 room.scales.data() + begin * groups, results);
            for (int r = 0; r < n; ++r) {
                const float* more = residual ? residual[begin + r] : nullptr;
                leave(step, blocks, results[r], more, out[begin + r]);
            }
        });
    });
}

#endif

}  // namespace paceline
