// Integer dot products of quantized weights with quantized activations, exact on every processor.
//
// A step is 64 bytes: four neighbouring inputs of each of 16 outputs; a register holds a part of
// it. Weights are unsigned codes.

#pragma once

#include "kernels/vectors.hpp"

namespace paceline {

#if defined(PACELINE_512)
#define PACELINE_VNNI 512
#elif defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define PACELINE_VNNI 256
#endif

constexpr int kTogether = 8;  // rows that meet a weight when it is read: their sums fit registers

// What weights of eight bits are raised by in `Sums`: 128 where one factor must be unsigned.
#if defined(PACELINE_VNNI)
constexpr int kRaised = 128;
#else
constexpr int kRaised = 0;
#endif

constexpr int kBytePart = 4 * kPart;

typedef uint8_t Bytes __attribute__((vector_size(kBytePart), aligned(1), may_alias));
typedef uint16_t Shorts __attribute__((vector_size(kBytePart), aligned(1), may_alias));

PACELINE_INLINE Bytes load_bytes(const uint8_t* at) { return *reinterpret_cast<const Bytes*>(at); }

// Of each byte the bits `kMask`, moved up by `kUp` (down if negative).
template <int kUp, int kMask>
PACELINE_INLINE Bytes bits(Bytes x) {
    constexpr int kLeft = kUp > 0 ? kUp : 0, kRight = kUp < 0 ? -kUp : 0;
    constexpr uint8_t kKept = uint8_t(kUp >= 0 ? kMask << kLeft : kMask >> kRight);
    const Shorts moved = kUp >= 0 ? Shorts(x) << kLeft : Shorts(x) >> kRight;
    return Bytes(moved) & (Bytes{} + kKept);
}

// Of each byte, below 16, what a table has for it.
#if PACELINE_VNNI == 512 || defined(__AVX2__)
PACELINE_INLINE Bytes looked_up(const uint8_t* table, Bytes at) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
#if PACELINE_VNNI == 512
    return Bytes(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), __m512i(at)));
#else
    return Bytes(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), __m256i(at)));
#endif
}
#elif defined(__aarch64__)
PACELINE_INLINE Bytes looked_up(const uint8_t* table, Bytes at) {
    return Bytes(vqtbl1q_u8(vld1q_u8(table), uint8x16_t(at)));
}
#else
inline Bytes looked_up(const uint8_t* table, Bytes at) {
    for (int byte = 0; byte < kBytePart; ++byte) at[byte] = table[at[byte]];
    return at;
}
#endif

// Sums of a row's products, by output of a part. `kSteps` neighbouring steps are added, or all 8.
template <int kBits, int kSteps>
struct Sums {
#if PACELINE_VNNI == 512
    __m512i total = _mm512_setzero_si512();

    PACELINE_INLINE void add(int, Bytes weights, const int8_t* four) {
        int32_t numbers;
        std::memcpy(&numbers, four, 4);
        // Inline, since compilers copy the accumulators of the intrinsic around.
        asm("vpdpbusd %2, %1, %0"
            : "+v"(total)
            : "v"(__m512i(weights)), "v"(_mm512_set1_epi32(numbers)));
    }
    PACELINE_INLINE IntPart ints() const { return IntPart(total); }

#elif PACELINE_VNNI == 256
    __m256i total = _mm256_setzero_si256();

    PACELINE_INLINE void add(int, Bytes weights, const int8_t* four) {
        int32_t numbers;
        std::memcpy(&numbers, four, 4);
        const __m256i y = _mm256_set1_epi32(numbers);
#if defined(__AVXVNNI__)
        total = _mm256_dpbusd_avx_epi32(total, __m256i(weights), y);
#else
        total = _mm256_dpbusd_epi32(total, __m256i(weights), y);
#endif
    }
    PACELINE_INLINE IntPart ints() const { return IntPart(total); }

#elif defined(__AVX2__)
    // Sums of 16 bits hold so many steps: codes are below 2^bits, activations at most 127.
    static constexpr int kMost = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
    static constexpr int kHeld = kMost < kSteps ? kMost : kSteps;
    __m256i total = _mm256_setzero_si256(), part;

    PACELINE_INLINE void add(int step, Bytes weights, const int8_t* four) {
        int32_t numbers;
        std::memcpy(&numbers, four, 4);
        const __m256i y = _mm256_set1_epi32(numbers), ones = _mm256_set1_epi16(1);
        if constexpr (kBits == 8) {
            const __m256i w = _mm256_xor_si256(__m256i(weights), _mm256_set1_epi8(-128));
            part = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(y, w));
        } else {
            const __m256i two = _mm256_maddubs_epi16(__m256i(weights), y);
            part = step % kHeld == 0 ? two : _mm256_add_epi16(part, two);
            asm("" : "+x"(part));  // else compilers put off the sums and run out of registers
        }
        if (step % kHeld != kHeld - 1) return;
        total = _mm256_add_epi32(total, _mm256_madd_epi16(part, ones));
        asm("" : "+x"(total));
    }
    PACELINE_INLINE IntPart ints() const { return IntPart(total); }

#elif defined(__ARM_FEATURE_DOTPROD)
    int32x4_t total = vdupq_n_s32(0);

    PACELINE_INLINE void add(int, Bytes weights, const int8_t* four) {
        int32_t numbers;
        std::memcpy(&numbers, four, 4);
        uint8x16_t w = uint8x16_t(weights);
        if constexpr (kBits == 8) w = veorq_u8(w, vdupq_n_u8(128));
        total = vdotq_s32(total, vreinterpretq_s8_u8(w), vreinterpretq_s8_s32(vdupq_n_s32(numbers)));
    }
    PACELINE_INLINE IntPart ints() const { return IntPart(total); }

#else
    IntPart total = {};

    // A call: inlined everywhere, it takes compilers minutes.
    __attribute__((noinline)) void add(int, Bytes weights, const int8_t* four) {
        for (int byte = 0; byte < kBytePart; ++byte) {
            const int code = weights[byte] - (kBits == 8 ? 128 : 0);
            total[byte / 4] += code * four[byte % 4];
        }
    }
    IntPart ints() const { return total; }
#endif
};

}  // namespace paceline
