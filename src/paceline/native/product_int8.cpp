#include <cstring>
#include <type_traits>

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

constexpr int kAhead = 4096;  // bytes of weights that are asked for before their use
constexpr int kAlone = 6000;  // numbers that one thread rounds while another would wake up
constexpr int kTogether = 8;  // rows up to which all meet a weight when it is read
constexpr int kSome = 5;      // of more, so many do at a time, each with two blocks: fewer loads

// The same, rounded here, whatever follows. Compilers may join a product with a sum behind it, and
// do so in one place and not in another.
inline Vec settled(Vec x) {
    asm("" : "+v"(x));
    return x;
}

// Rounds a row to int8 by groups; `minus` becomes -128 times the sum of each group's numbers.
void round_row(const Step& step, const float* x, int8_t* numbers, float* scales, int32_t* minus) {
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
        __m512i total = _mm512_setzero_si512();
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const __m512i whole = _mm512_cvtps_epi32(__m512(values[i] * factor));
            total = _mm512_add_epi32(total, whole);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + g * kGroup + i * kLanes),
                             _mm512_cvtsepi32_epi8(whole));
        }
        minus[g] = -128 * _mm512_reduce_add_epi32(total);
    }
}

// Rounded rows.
struct Rounded {
    const int8_t* numbers;
    const float* scales;
    const int32_t* minus;
};

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
                int32_t four;
                std::memcpy(&four, numbers + r * stride + k * 4, 4);
                const __m512i y = _mm512_set1_epi32(four);
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
    const int64_t width = step.matrix.inputs, groups = width / kGroup;
    room.numbers.resize(rows * width);
    room.scales.resize(rows * groups);
    room.minus.resize(rows * groups);
    each(rows, rows * width > kAlone, [&](int64_t r) {
        round_row(step, x[r], room.numbers.data() + r * width, room.scales.data() + r * groups,
                  room.minus.data() + r * groups);
    });
    pairs(step, [&](const int64_t (&blocks)[2]) {
        const auto part = [&](auto n, int begin, auto wide) {
            const Rounded some{room.numbers.data() + begin * width,
                               room.scales.data() + begin * groups,
                               room.minus.data() + begin * groups};
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
