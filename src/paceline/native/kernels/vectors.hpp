// Vectors of 16 numbers, and loops over rows, that the operations here share.

#pragma once

#include <cstdint>
#include <type_traits>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace paceline {

constexpr int kLanes = 16;

typedef float Vec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int8_t ByteVec __attribute__((vector_size(kLanes), aligned(1), may_alias));
typedef _Float16 HalfVec __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

inline Vec load(const float* at) { return *reinterpret_cast<const Vec*>(at); }
inline Vec load(const _Float16* at) {
#ifdef __AVX512F__  // which compilers do not all see
    return Vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
#else
    return __builtin_convertvector(*reinterpret_cast<const HalfVec*>(at), Vec);
#endif
}
inline Vec load(const int8_t* at) {
#ifdef __AVX512F__  // likewise
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    // All lanes: GCC 12 warns of the same without a mask.
    return __builtin_convertvector(IntVec(_mm512_maskz_cvtepi8_epi32(0xffff, bytes)), Vec);
#else
    return __builtin_convertvector(*reinterpret_cast<const ByteVec*>(at), Vec);
#endif
}
inline void store(float* at, Vec x) { *reinterpret_cast<Vec*>(at) = x; }
inline Vec all(float x) { return Vec{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

// Rows of numbers, `stride` apart.
template <class Number>
struct Rows {
    Number* at;
    int64_t stride;

    Number* operator[](int64_t row) const { return at + row * stride; }
    explicit operator bool() const { return at != nullptr; }
};

// e^x / 2^n, for the whole number n that is nearest to x / log 2.
inline Vec exponential_beside(Vec n, Vec x) {
    const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Vec p = r * 1.9875691e-4f + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    return p * r * r + r + 1.0f;
}

// e^x, 1 at 0, for x from -87 to 88; others are moved there. Relative error below 2e-7.
inline Vec exponential(Vec x) {
    x = x < -87.0f ? all(-87.0f) : x;
    x = x > 88.0f ? all(88.0f) : x;
    const Vec shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec n = (x * 1.44269504f + shift) - shift;
    const IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
    return exponential_beside(n, x) * reinterpret_cast<const Vec&>(power);
}

// e^x for x up to 0, with as small an error; what is below 2^-126 may be 0.
inline Vec exponential_of_negative(Vec x) {
#ifdef __AVX512F__
    const Vec scaled = x * 1.44269504f;
    const Vec n = Vec(_mm512_roundscale_ps(__m512(scaled), _MM_FROUND_TO_NEAREST_INT));
    return Vec(_mm512_scalef_ps(__m512(exponential_beside(n, x)), __m512(n)));
#else
    return exponential(x);
#endif
}

inline float exponential(float x) { return exponential(all(x))[0]; }

// Of all lanes; halves are put together until one is left.
inline float sum(Vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps(__m512(x));
#else
    float part[kLanes];
    store(part, x);
    for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) part[i] += part[i + half];
    }
    return part[0];
#endif
}

inline float largest(Vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps(__m512(x));
#else
    float most = x[0];
    for (int i = 1; i < kLanes; ++i) most = x[i] > most ? x[i] : most;
    return most;
#endif
}

// The larger of each two; the second where one is no number.
inline Vec larger(Vec a, Vec b) {
#ifdef __AVX512F__  // one instruction, which compilers do not all see
    return Vec(_mm512_max_ps(__m512(a), __m512(b)));
#else
    return a > b ? a : b;
#endif
}

// Dot product, `width` a multiple of 16.
template <class Number>
float dot(const Number* a, const float* b, int64_t width) {
    Vec total = {};
    for (int64_t d = 0; d < width; d += kLanes) total += load(a + d) * load(b + d);
    return sum(total);
}

// Bit i says whether number i is as large as `least`.
inline uint32_t reach(const float* at, float least) {
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(at), _mm512_set1_ps(least), _CMP_GE_OQ);
#else
    uint32_t out = 0;
    for (int lane = 0; lane < kLanes; ++lane) out |= uint32_t(at[lane] >= least) << lane;
    return out;
#endif
}

// Calls `some` with the place of every number as large as `least`, in order.
template <class Some>
void reaching(const float* at, int64_t count, float least, Some&& some) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (uint32_t bits = reach(at + i, least); bits; bits &= bits - 1) {
            some(int32_t(i + __builtin_ctz(bits)));
        }
    }
    for (; i < count; ++i) {
        if (at[i] >= least) some(int32_t(i));
    }
}

// Calls `some` with a number, at most `kMost`, as a constant.
template <int kMost, class Some>
void as_constant(int number, Some&& some) {
    if (number == kMost) return some(std::integral_constant<int, kMost>{});
    if constexpr (kMost > 1) as_constant<kMost - 1>(number, some);
}

// Calls `some` with a constant number of rows, at most `kMost`, and the first of them, in parts of
// equal size. The partition changes no row's result.
template <int kMost, class Some>
void by_rows(int rows, Some&& some) {
    const int parts = (rows + kMost - 1) / kMost;
    for (int part = 0; part < parts; ++part) {
        const int first = part * rows / parts;
        const int count = (part + 1) * rows / parts - first;
        as_constant<kMost>(count, [&](auto n) { some(n, first); });
    }
}

}  // namespace paceline
