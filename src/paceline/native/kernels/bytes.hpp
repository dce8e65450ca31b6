// Integer dot products of quantized weights with quantized activations, exact on every processor.
//
// A step is 64 bytes: four neighbouring inputs of each of 16 outputs. Weights are unsigned codes.

#pragma once

#include "kernels/vectors.hpp"

namespace paceline {

#if defined(PACELINE_512)
#define PACELINE_VNNI 512
constexpr int kTogether = 8;  // rows that meet a weight when it is read: their sums fit registers
#elif defined(__AVX2__)
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define PACELINE_VNNI 256
#endif
constexpr int kTogether = 4;
#else
constexpr int kTogether = 4;
#endif

// What weights of eight bits are raised by in `Sums`: 128 where one factor must be unsigned.
#if defined(PACELINE_VNNI)
constexpr int kRaised = 128;
#else
constexpr int kRaised = 0;
#endif

#if defined(PACELINE_512)
constexpr int kBytePart = 64;
#elif defined(__AVX2__)
constexpr int kBytePart = 32;
#else
constexpr int kBytePart = 16;
#endif
constexpr int kByteParts = 64 / kBytePart;

typedef uint8_t BytePart __attribute__((vector_size(kBytePart), aligned(1), may_alias));
typedef uint16_t ShortPart __attribute__((vector_size(kBytePart), aligned(1), may_alias));

#define PACELINE_BYTES for (int i = 0; i < kByteParts; ++i)

// The codes of a step.
struct Step {
    BytePart p[kByteParts];
};

PACELINE_INLINE Step load_step(const uint8_t* at) {
    Step out;
    PACELINE_BYTES out.p[i] = *reinterpret_cast<const BytePart*>(at + i * kBytePart);
    return out;
}

// Of each byte the bits `kMask`, moved up by `kUp` (down if negative).
template <int kUp, int kMask>
PACELINE_INLINE Step bits(const Step& x) {
    Step out;
    PACELINE_BYTES {
        const ShortPart y = ShortPart(x.p[i]);
        const ShortPart moved = kUp >= 0 ? y << (kUp > 0 ? kUp : 0) : y >> (kUp < 0 ? -kUp : 0);
        constexpr uint8_t kKept = uint8_t(kUp >= 0 ? kMask << (kUp > 0 ? kUp : 0)
                                                   : kMask >> (kUp < 0 ? -kUp : 0));
        out.p[i] = BytePart(moved) & (BytePart{} + kKept);
    }
    return out;
}
PACELINE_INLINE Step operator|(const Step& a, const Step& b) {
    Step out;
    PACELINE_BYTES out.p[i] = a.p[i] | b.p[i];
    return out;
}

// Sums of a row's products, by output. Steps are added up to the size of a group, 8.
template <int kBits>
struct Sums {
#if PACELINE_VNNI == 512
    __m512i total = _mm512_setzero_si512();

    PACELINE_INLINE void add(int, const Step& weights, const int8_t* four) {
        int32_t numbers;
        std::memcpy(&numbers, four, 4);
        // Inline, since compilers copy the accumulators of the intrinsic around.
        asm("vpdpbusd %2, %1, %0"
            : "+v"(total)
            : "v"(__m512i(weights.p[0])), "v"(_mm512_set1_epi32(numbers)));
    }
    PACELINE_INLINE Ints ints() const { return {{IntPart(total)}}; }

#elif PACELINE_VNNI == 256
    __m256i total[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};

    PACELINE_INLINE void add(int, const Step& weights, const int8_t* four) {
        int32_t numbers;
        std::memcpy(&numbers, four, 4);
        const __m256i y = _mm256_set1_epi32(numbers);
        for (int i = 0; i < 2; ++i) {
#if defined(__AVXVNNI__)
            total[i] = _mm256_dpbusd_avx_epi32(total[i], __m256i(weights.p[i]), y);
#else
            total[i] = _mm256_dpbusd_epi32(total[i], __m256i(weights.p[i]), y);
#endif
        }
    }
    PACELINE_INLINE Ints ints() const { return {{IntPart(total[0]), IntPart(total[1])}}; }

#elif defined(__AVX2__)
    // Sums of 16 bits hold so many steps: codes are below 2^bits, activations at most 127.
    static constexpr int kHeld = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
    __m256i total[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i part[2];

    PACELINE_INLINE void add(int step, const Step& weights, const int8_t* four) {
        int32_t numbers;
        std::memcpy(&numbers, four, 4);
        const __m256i y = _mm256_set1_epi32(numbers), ones = _mm256_set1_epi16(1);
        for (int i = 0; i < 2; ++i) {
            __m256i two;
            if constexpr (kBits == 8) {
                const __m256i w = _mm256_xor_si256(__m256i(weights.p[i]), _mm256_set1_epi8(-128));
                two = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(y, w));
            } else {
                two = _mm256_maddubs_epi16(__m256i(weights.p[i]), y);
            }
            if (kHeld == 1) {
                total[i] = _mm256_add_epi32(total[i], _mm256_madd_epi16(two, ones));
                continue;
            }
            part[i] = step % kHeld == 0 ? two : _mm256_add_epi16(part[i], two);
            if (step % kHeld != kHeld - 1) continue;
            total[i] = _mm256_add_epi32(total[i], _mm256_madd_epi16(part[i], ones));
        }
    }
    PACELINE_INLINE Ints ints() const { return {{IntPart(total[0]), IntPart(total[1])}}; }

#elif defined(__ARM_FEATURE_DOTPROD)
    int32x4_t total[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};

    PACELINE_INLINE void add(int, const Step& weights, const int8_t* four) {
        int32_t numbers;
        std::memcpy(&numbers, four, 4);
        const int8x16_t y = vreinterpretq_s8_s32(vdupq_n_s32(numbers));
        for (int i = 0; i < 4; ++i) {
            uint8x16_t w = uint8x16_t(weights.p[i]);
            if constexpr (kBits == 8) w = veorq_u8(w, vdupq_n_u8(128));
            total[i] = vdotq_s32(total[i], vreinterpretq_s8_u8(w), y);
        }
    }
    PACELINE_INLINE Ints ints() const {
        Ints out;
        for (int i = 0; i < 4; ++i) out.p[i] = IntPart(total[i]);
        return out;
    }

#else
    int32_t total[kLanes] = {};

    void add(int, const Step& weights, const int8_t* four) {
        for (int byte = 0; byte < 64; ++byte) {
            int code = weights.p[byte / kBytePart][byte % kBytePart];
            if (kBits == 8) code -= 128;
            total[byte / 4] += code * four[byte % 4];
        }
    }
    Ints ints() const {
        Ints out;
        for (int lane = 0; lane < kLanes; ++lane) out.p[lane / kPart][lane % kPart] = total[lane];
        return out;
    }
#endif
};

}  // namespace paceline
