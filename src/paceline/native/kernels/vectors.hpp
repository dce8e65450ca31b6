// Vectors of 16 floats, the same operations on every processor: what the canonical arithmetic is
// made of. Compiled without contraction: a multiply-add happens where `fma` stands, nowhere else.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

// Vectors of 512 bits; without them the twin of AVX-VNNI, for processors that lack it.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__) && !defined(PACELINE_TWIN)
#define PACELINE_512 1
#endif

namespace paceline {

constexpr int kLanes = 16;

// A register, and how many make a vector.
#if defined(PACELINE_512)
constexpr int kPart = 16;
#elif defined(__AVX2__)
constexpr int kPart = 8;
#else
constexpr int kPart = 4;
#endif
constexpr int kParts = kLanes / kPart;

typedef float Part __attribute__((vector_size(4 * kPart), aligned(4), may_alias));
typedef int32_t IntPart __attribute__((vector_size(4 * kPart), aligned(4), may_alias));

#define PACELINE_PARTS for (int i = 0; i < kParts; ++i)
#define PACELINE_INLINE inline __attribute__((always_inline))

// 16 integers; of a comparison, -1 where it holds.
struct Ints {
    IntPart p[kParts];
};

struct Vec {
    Part p[kParts];

    float operator[](int lane) const { return p[lane / kPart][lane % kPart]; }
};

PACELINE_INLINE Vec load(const float* at) {
    Vec out;
    PACELINE_PARTS out.p[i] = *reinterpret_cast<const Part*>(at + i * kPart);
    return out;
}
PACELINE_INLINE void store(float* at, const Vec& x) {
    PACELINE_PARTS *reinterpret_cast<Part*>(at + i * kPart) = x.p[i];
}
PACELINE_INLINE Vec all(float x) {
    Vec out;
    PACELINE_PARTS out.p[i] = Part{} + x;
    return out;
}
PACELINE_INLINE Vec zeros() {
    Vec out;
    PACELINE_PARTS out.p[i] = Part{};
    return out;
}

#define PACELINE_OPERATOR(op)                                          \
    PACELINE_INLINE Vec operator op(const Vec& a, const Vec& b) {      \
        Vec out;                                                       \
        PACELINE_PARTS out.p[i] = a.p[i] op b.p[i];                    \
        return out;                                                    \
    }                                                                  \
    PACELINE_INLINE Vec operator op(const Vec& a, float b) { return a op all(b); }
PACELINE_OPERATOR(+)
PACELINE_OPERATOR(-)
PACELINE_OPERATOR(*)
PACELINE_OPERATOR(/)
#undef PACELINE_OPERATOR

PACELINE_INLINE Vec operator-(const Vec& x) {
    Vec out;
    PACELINE_PARTS out.p[i] = -x.p[i];
    return out;
}
PACELINE_INLINE Vec& operator+=(Vec& a, const Vec& b) { return a = a + b; }

#define PACELINE_COMPARISON(op)                                        \
    PACELINE_INLINE Ints operator op(const Vec& a, const Vec& b) {     \
        Ints out;                                                      \
        PACELINE_PARTS out.p[i] = a.p[i] op b.p[i];                    \
        return out;                                                    \
    }
PACELINE_COMPARISON(<)
PACELINE_COMPARISON(>)
PACELINE_COMPARISON(<=)
PACELINE_COMPARISON(==)
#undef PACELINE_COMPARISON

// `a` where the comparison holds, else `b`.
PACELINE_INLINE Vec select(const Ints& holds, const Vec& a, const Vec& b) {
    Vec out;
    PACELINE_PARTS out.p[i] = holds.p[i] ? a.p[i] : b.p[i];
    return out;
}
PACELINE_INLINE Vec larger(const Vec& a, const Vec& b) { return select(a > b, a, b); }
PACELINE_INLINE Vec size_of(const Vec& x) { return select(x < zeros(), -x, x); }

// a * b + c, rounded once.
PACELINE_INLINE Part fma(Part a, Part b, Part c) {
#if defined(PACELINE_512)
    return Part(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__AVX2__)
    return Part(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__ARM_NEON)
    return Part(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#else
    for (int lane = 0; lane < kPart; ++lane) c[lane] = std::fma(a[lane], b[lane], c[lane]);
    return c;
#endif
}
PACELINE_INLINE Vec fma(const Vec& a, const Vec& b, const Vec& c) {
    Vec out;
    PACELINE_PARTS out.p[i] = fma(a.p[i], b.p[i], c.p[i]);
    return out;
}
PACELINE_INLINE Vec fma(const Vec& a, float b, const Vec& c) { return fma(a, all(b), c); }

PACELINE_INLINE Vec floats(const Ints& x) {
    Vec out;
    PACELINE_PARTS out.p[i] = __builtin_convertvector(x.p[i], Part);
    return out;
}

// Half precision, as stored.
typedef uint16_t Half;
struct Brain {
    uint16_t bits;  // bfloat16
};

PACELINE_INLINE float wide(Half x) {
#if defined(__AVX2__)
    return _cvtsh_ss(x);
#elif defined(__ARM_NEON)
    __fp16 y;
    std::memcpy(&y, &x, sizeof y);
    return float(y);
#else
    // In integers: not every compiler has the type.
    const uint32_t size = uint32_t(x & 0x7FFF) << 13;
    uint32_t bits = size >= 0x0F800000 ? size + 0x70000000 : size + 0x38000000;
    float y;
    if (size < 0x00800000) bits += 0x00800000;
    std::memcpy(&y, &bits, sizeof y);
    if (size < 0x00800000) y -= 6.103515625e-5f;  // 2^-14
    return x & 0x8000 ? -y : y;
#endif
}
PACELINE_INLINE Half half(float x) {
#if defined(__AVX2__)
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__ARM_NEON)
    const __fp16 y = __fp16(x);
    Half out;
    std::memcpy(&out, &y, sizeof out);
    return out;
#else
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const Half sign = Half(bits >> 16 & 0x8000);
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return sign | 0x7E00;
    if (bits >= 0x477FF000) return sign | 0x7C00;
    if (bits >= 0x38800000) return sign | Half((bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
    float y;
    std::memcpy(&y, &bits, sizeof y);
    y += 0.5f;  // rounds to the smallest step of halves
    std::memcpy(&bits, &y, sizeof bits);
    return sign | Half(bits - 0x3F000000);
#endif
}
PACELINE_INLINE Vec load(const Half* at) {
    Vec out;
#if defined(PACELINE_512)
    out.p[0] = Part(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
#elif defined(__AVX2__)
    PACELINE_PARTS out.p[i] =
        Part(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i * kPart))));
#elif defined(__ARM_NEON)
    PACELINE_PARTS out.p[i] =
        Part(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at + i * kPart))));
#else
    for (int lane = 0; lane < kLanes; ++lane) out.p[lane / kPart][lane % kPart] = wide(at[lane]);
#endif
    return out;
}
PACELINE_INLINE Vec load(const Brain* at) {
    typedef uint16_t Shorts __attribute__((vector_size(2 * kPart), aligned(2), may_alias));
    Vec out;
    PACELINE_PARTS {
        const Shorts bits = *reinterpret_cast<const Shorts*>(at + i * kPart);
        out.p[i] = Part(__builtin_convertvector(bits, IntPart) << 16);
    }
    return out;
}

// 16 numbers of eight bits; compilers do not see the instructions.
PACELINE_INLINE Ints load_ints(const uint8_t* at) {
    Ints out;
    PACELINE_PARTS {
        const uint8_t* from = at + i * kPart;
#if defined(PACELINE_512)
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        out.p[i] = IntPart(_mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
        out.p[i] = IntPart(_mm256_cvtepu8_epi32(bytes));
#else
        for (int lane = 0; lane < kPart; ++lane) out.p[i][lane] = from[lane];
#endif
    }
    return out;
}
PACELINE_INLINE Ints load_ints(const int8_t* at) {
    Ints out = load_ints(reinterpret_cast<const uint8_t*>(at));
    PACELINE_PARTS out.p[i] = (out.p[i] ^ 128) - 128;
    return out;
}

// 2^(x - 128), x from 0 to 255.
PACELINE_INLINE Vec powers(const Ints& x) {
    Vec out;
    PACELINE_PARTS {
        const IntPart bits = x.p[i] < 2 ? (x.p[i] + 1) << 21 : (x.p[i] - 1) << 23;  // small ones too
        out.p[i] = Part(bits);
    }
    return out;
}

// Of all lanes; halves are put together until one is left.
inline float sum(const Vec& x) {
    float part[kLanes];
    store(part, x);
    for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) part[i] += part[i + half];
    }
    return part[0];
}

inline float largest(const Vec& x) {
    float part[kLanes];
    store(part, x);
    float most = part[0];
    for (int i = 1; i < kLanes; ++i) most = part[i] > most ? part[i] : most;
    return most;
}

// Rows of numbers, `stride` apart.
template <class Number>
struct Rows {
    Number* at;
    int64_t stride;

    Number* operator[](int64_t row) const { return at + row * stride; }
    explicit operator bool() const { return at != nullptr; }
};

// e^x, 1 at 0; x below -87 or above 88 is moved there. Relative error below 2e-7.
PACELINE_INLINE Vec exponential(Vec x) {
    x = select(x < all(-87.0f), all(-87.0f), x);
    x = select(x > all(88.0f), all(88.0f), x);
    const Vec shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec n = fma(x, 1.44269504f, shift) - shift;
    const Vec r = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, x));
    Vec p = fma(r, 1.9875691e-4f, all(1.3981999e-3f));
    p = fma(p, r, all(8.3334519e-3f));
    p = fma(p, r, all(4.1665796e-2f));
    p = fma(p, r, all(1.6666665e-1f));
    p = fma(p, r, all(5.0000001e-1f));
    p = fma(p, r * r, r + 1.0f);
    Vec out;
    PACELINE_PARTS {
        const IntPart power = (__builtin_convertvector(n.p[i], IntPart) + 127) << 23;
        out.p[i] = p.p[i] * Part(power);
    }
    return out;
}

inline float exponential(float x) { return exponential(all(x))[0]; }

// 1 / (1 + e^-x).
PACELINE_INLINE Vec sigmoid(const Vec& x) { return all(1.0f) / (exponential(-x) + 1.0f); }

// x / (1 + e^-x).
PACELINE_INLINE Vec silu(const Vec& x) { return x / (exponential(-x) + 1.0f); }

// GELU by its tanh: x / (1 + e^(-2 sqrt(2 / pi) (x + 0.044715 x^3))).
PACELINE_INLINE Vec gelu(const Vec& x) {
    const Vec inner = fma(x * x * x, 0.044715f, x);
    return x / (exponential(inner * -1.5957691216f) + 1.0f);
}

// x times the share of a normal distribution below it (Abramowitz and Stegun 1964, 26.2.17).
PACELINE_INLINE Vec exact_gelu(const Vec& x) {
    const Vec size = larger(x, -x);
    const Vec t = all(1.0f) / fma(size, 0.23164189f, all(1.0f));
    Vec share = fma(t, 0.5307027145f, all(-0.7265760135f));
    share = fma(share, t, all(0.7107068705f));
    share = fma(share, t, all(-0.142248368f));
    share = fma(share, t, all(0.127414796f));
    return larger(x, zeros()) - size * (share * t) * exponential(x * x * -0.5f);
}

// gpt-oss's gate: x / (1 + e^(-1.702 x)) * (y + 1), of x up to 7 and y from -7 to 7.
PACELINE_INLINE Vec clamped(Vec x, Vec y) {
    x = select(x > all(7.0f), all(7.0f), x);
    y = select(y > all(7.0f), all(7.0f), y);
    y = select(y < all(-7.0f), all(-7.0f), y);
    return x / (exponential(x * -1.702f) + 1.0f) * (y + 1.0f);
}

// The square of x above zero, else 0.
PACELINE_INLINE Vec relu2(const Vec& x) {
    const Vec above = larger(x, zeros());
    return above * above;
}

// Dot product, `width` a multiple of 16.
template <class Number>
float dot(const Number* a, const float* b, int64_t width) {
    Vec total = zeros();
    for (int64_t d = 0; d < width; d += kLanes) total = fma(load(a + d), load(b + d), total);
    return sum(total);
}

// Calls `some` with the place of every number as large as `least`, in order.
template <class Some>
void reaching(const float* at, int64_t count, float least, Some&& some) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const Ints low = load(at + i) < all(least);
        int32_t all_low = -1;
        PACELINE_PARTS {
            for (int lane = 0; lane < kPart; ++lane) all_low &= low.p[i][lane];
        }
        if (all_low) continue;
        for (int lane = 0; lane < kLanes; ++lane) {
            if (at[i + lane] >= least) some(int32_t(i + lane));
        }
    }
    for (; i < count; ++i) {
        if (at[i] >= least) some(int32_t(i));
    }
}

// Calls `some` with a number, at most `kMost`, as a constant.
template <int kMost, class Some>
PACELINE_INLINE void as_constant(int number, Some&& some) {
    if (number == kMost) return some(std::integral_constant<int, kMost>{});
    if constexpr (kMost > 1) as_constant<kMost - 1>(number, some);
}

// Calls `some` with a constant number of rows, at most `kMost`, and the first of them, in parts of
// equal size. The partition changes no row's result.
template <int kMost, class Some>
PACELINE_INLINE void by_rows(int rows, Some&& some) {
    const int parts = (rows + kMost - 1) / kMost;
    for (int part = 0; part < parts; ++part) {
        const int first = part * rows / parts;
        const int count = (part + 1) * rows / parts - first;
        as_constant<kMost>(count, [&](auto n) { some(n, first); });
    }
}

}  // namespace paceline
