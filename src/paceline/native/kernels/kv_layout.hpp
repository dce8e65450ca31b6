// Storage formats of keys and values, 32 tokens per block, and dot products with them.
//
// A word is one number, or a pair for bf16: keys pair a token's numbers, values pair tokens.
//   keys:    [width / together, 32, together]
//   values:  [32 / together, width, together]

#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/visible_keys.hpp"
#include "kernels/vectors.hpp"

namespace paceline {

// fp32 or fp16, one number per word, summed in fp32.
template <class Stored>
struct Single {
    using Number = Stored;
    using Vector = Vec;
    static constexpr int kTogether = 1;

    static Vector vector(const Number* at) { return load(at); }
    static Vector every(float word) { return all(word); }
    static Vec add(Vec sum, Vector a, Vector b) { return sum + a * b; }

    // Makes words of numbers; they may take their place.
    static void words(const float* from, int count, float* to) {
        if (to != from) std::memcpy(to, from, sizeof(float) * count);
    }

    static void put_key(const float* key, int width, Number* block, int place) {
        for (int d = 0; d < width; ++d) block[d * kBlock + place] = Number(key[d]);
    }
    static void put_value(const float* value, int width, Number* block, int place) {
        for (int d = 0; d < width; ++d) block[place * width + d] = Number(value[d]);
    }
    static void copy_value(const Number* from, int old, int width, Number* to, int place) {
        std::memcpy(to + place * width, from + old * width, sizeof(Number) * width);
    }
};

#ifdef __AVX512BF16__

constexpr bool kHasBf16Dot = true;

// bf16 pairs: one instruction multiplies and adds 16 pairs.
struct Bf16Pairs {
    using Number = uint16_t;
    using Vector = __m512bh;
    static constexpr int kTogether = 2;

    static Vector vector(const Number* at) { return Vector(_mm512_loadu_si512(at)); }
    static Vector every(float word) { return Vector(_mm512_set1_ps(word)); }
    static Vec add(Vec sum, Vector a, Vector b) { return Vec(_mm512_dpbf16_ps(__m512(sum), a, b)); }

    static __m256i rounded(const float* at) {
        return __m256i(_mm512_cvtneps_pbh(_mm512_loadu_ps(at)));
    }

    // `count` is a multiple of 16.
    static void words(const float* from, int count, float* to) {
        for (int i = 0; i < count; i += kLanes) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i / 2), rounded(from + i));
        }
    }

    static void put_key(const float* key, int width, Number* block, int place) {
        for (int d = 0; d < width; d += kLanes) {
            alignas(32) Number pairs[kLanes];
            _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), rounded(key + d));
            for (int i = 0; i < kLanes; i += 2) {
                std::memcpy(block + (d + i) * kBlock + 2 * place, pairs + i, 2 * sizeof(Number));
            }
        }
    }
    static void put_value(const float* value, int width, Number* block, int place) {
        Number* at = block + place / 2 * 2 * width;
        const __mmask32 mine = place % 2 ? 0xaaaaaaaa : 0x55555555;
        for (int d = 0; d < width; d += kLanes) {
            const __m512i wide = _mm512_cvtepu16_epi32(rounded(value + d));
            const __m512i there = place % 2 ? _mm512_slli_epi32(wide, 16) : wide;
            _mm512_mask_storeu_epi16(at + 2 * d, mine, there);
        }
    }
    static void copy_value(const Number* from, int old, int width, Number* to, int place) {
        from += old / 2 * 2 * width + old % 2;
        to += place / 2 * 2 * width + place % 2;
        for (int d = 0; d < width; ++d) to[2 * d] = from[2 * d];
    }
};

#else

constexpr bool kHasBf16Dot = false;

#endif

}  // namespace paceline
