#include "product.hpp"

#include "vectors.hpp"

#include <tbb/task_arena.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#define PACELINE_PRODUCTS 1
#endif

namespace paceline {

#ifndef PACELINE_PRODUCTS

bool has_products() { return false; }
void product(const Step&, int64_t, const float*, const float*, float*) {}

#else

namespace {

constexpr int kAhead = 2048;  // bytes of weights that are asked for before their use
constexpr int kRows = 4;  // that share loads of weights

// Rows rounded to int8, kept with 128 added: the instruction multiplies unsigned by signed.
struct Rounded {
    std::vector<uint8_t> numbers;  // [rows, inputs]
    std::vector<float> scales;     // [rows, inputs / 64]
};

float root_mean_square_scale(const float* x, int width, float eps) {
    Vec square = {};
    for (int d = 0; d < width; d += kLanes) square += load(x + d) * load(x + d);
    return 1.0f / std::sqrt(sum(square) / width + eps);
}

void round_row(const Step& step, const float* x, uint8_t* numbers, float* scales) {
    const int width = step.matrix.inputs;
    const float norm = step.norm ? root_mean_square_scale(x, width, step.eps) : 1.0f;
    for (int g = 0; g < width / kGroup; ++g) {
        Vec values[kGroup / kLanes];
        Vec largest = {};
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const int at = g * kGroup + i * kLanes;
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
template <int N>
void two_blocks(const Matrix& matrix, const int64_t (&blocks)[2], const uint8_t* numbers,
                const float* scales, __m512 (&out)[kRows][2]) {
    const int groups = matrix.inputs / kGroup;
    const int64_t stride = matrix.inputs;
    const int8_t* weights[2];
    const int16_t* sums[2];
    for (int b = 0; b < 2; ++b) {
        weights[b] = matrix.weights + blocks[b] * matrix.inputs * kLanes;
        sums[b] = matrix.sums + blocks[b] * groups * kLanes;
    }
    __m512 total[N][2];
#pragma GCC unroll 6
    for (int r = 0; r < N; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
    for (int g = 0; g < groups; ++g, numbers += kGroup) {
        __m512i sum[N][2];
#pragma GCC unroll 2
        for (int b = 0; b < 2; ++b) {
            // 128 times minus the sum of weights takes away what adding 128 to numbers added.
            const __m256i minus = _mm256_loadu_si256(
                reinterpret_cast<const __m256i*>(sums[b] + g * kLanes));
            const __m512i begin = _mm512_slli_epi32(_mm512_cvtepi16_epi32(minus), 7);
#pragma GCC unroll 6
            for (int r = 0; r < N; ++r) sum[r][b] = begin;
        }
#pragma GCC unroll 4
        for (int k = 0; k < kGroup / 4; ++k) {
            const int64_t at = (int64_t{g} * (kGroup / 4) + k) * 64;
            if (N > 1) {  // one row alone is fast enough for the processor to look ahead itself
                _mm_prefetch(weights[0] + at + kAhead, _MM_HINT_T0);
                _mm_prefetch(weights[1] + at + kAhead, _MM_HINT_T0);
            }
            const __m512i w0 = _mm512_loadu_si512(weights[0] + at);
            const __m512i w1 = _mm512_loadu_si512(weights[1] + at);
#pragma GCC unroll 6
            for (int r = 0; r < N; ++r) {
                const __m512i x = _mm512_set1_epi32(four(numbers + r * stride + k * 4));
                sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], x, w0);
                sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], x, w1);
            }
        }
#pragma GCC unroll 6
        for (int r = 0; r < N; ++r) {
            const __m512 scale = _mm512_set1_ps(scales[r * groups + g]);
#pragma GCC unroll 2
            for (int b = 0; b < 2; ++b) {
                total[r][b] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][b]), scale, total[r][b]);
            }
        }
    }
    for (int b = 0; b < 2; ++b) {
        const __m512 scale = _mm512_loadu_ps(matrix.scales + blocks[b] * kLanes);
        for (int r = 0; r < N; ++r) {
            out[r][b] = _mm512_mul_ps(total[r][b], scale);
            if (matrix.bias != nullptr) {
                out[r][b] = _mm512_add_ps(out[r][b],
                                          _mm512_loadu_ps(matrix.bias + blocks[b] * kLanes));
            }
        }
    }
}

}  // namespace

bool has_products() { return true; }

void product(const Step& step, int64_t rows, const float* x, const float* residual, float* out) {
    const Matrix& matrix = step.matrix;
    const int groups = matrix.inputs / kGroup;
    Rounded rounded{std::vector<uint8_t>(rows * matrix.inputs), std::vector<float>(rows * groups)};
    each(rows, rows > 16, [&](int64_t r) {
        round_row(step, x + r * matrix.inputs, rounded.numbers.data() + r * matrix.inputs,
                  rounded.scales.data() + r * groups);
    });
    const int64_t blocks = matrix.outputs / kLanes, pairs = (blocks + 1) / 2;
    const int width = step.gated ? matrix.outputs / 2 : matrix.outputs;
    const auto pair = [&](int64_t p) {
        // Of an odd number of blocks the last is its own partner, and written twice.
        const int64_t second = step.gated ? p + blocks / 2 : std::min(2 * p + 1, blocks - 1);
        const int64_t both[2] = {step.gated ? p : 2 * p, second};
        by_rows(int(rows), kRows, [&](auto n, int64_t begin) {
                __m512 results[kRows][2];
                two_blocks<n>(matrix, both, rounded.numbers.data() + begin * matrix.inputs,
                              rounded.scales.data() + begin * groups, results);
                for (int r = 0; r < n; ++r) {
                    float* to = out + (begin + r) * width;
                    if (step.gated) {
                        const Vec gate = Vec(results[r][0]), other = Vec(results[r][1]);
                        store(to + both[0] * kLanes, gate / (exponential(-gate) + 1.0f) * other);
                        continue;
                    }
                    for (int b = 0; b < 2; ++b) {
                        Vec result = Vec(results[r][b]);
                        const int64_t at = both[b] * kLanes;
                        if (residual) result += load(residual + (begin + r) * width + at);
                        store(to + at, result);
                    }
            }
        });
    };
    const int64_t parts = std::min<int64_t>(pairs, 6 * tbb::this_task_arena::max_concurrency());
    each(parts, true, [&](int64_t part) {
        for (int64_t p = part * pairs / parts; p < (part + 1) * pairs / parts; ++p) pair(p);
    });
}

#endif

}  // namespace paceline
