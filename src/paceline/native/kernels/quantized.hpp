// Activations quantized to int8 in groups of 64, row by row.

#pragma once

#include <cstdint>
#include <vector>

#include "kernels/vectors.hpp"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#define PACELINE_INT8 1
#endif

namespace paceline {

constexpr int kGroup = 64;  // activations that share a scale

// A group of a row: numbers times `scale`.
struct QuantizedGroup {
    int8_t numbers[kGroup];
    float scale;
    int32_t minus;  // -128 times the sum of the numbers
    float square;   // of a row before a norm's weights: the sum of its squares
    int32_t unused;
};

// Stored by group, each in cache lines of its own, since different threads write them.
class QuantizedRows {
   public:
    void fit(int64_t rows, int64_t width) {
        lines_ = (rows * int64_t{sizeof(QuantizedGroup)} + sizeof(Line) - 1) / sizeof(Line);
        memory_.resize(lines_ * (width / kGroup));
    }

    // No part of any of so many groups is there yet.
    void expect(int64_t groups) { parts_.assign(groups, Parts()); }

    QuantizedGroup* group(int64_t g) {
        return reinterpret_cast<QuantizedGroup*>(memory_.data() + g * lines_);
    }
    const QuantizedGroup* group(int64_t g) const {
        return reinterpret_cast<const QuantizedGroup*>(memory_.data() + g * lines_);
    }

    // Counts a finished part of a group; true for the last one.
    bool part_done(int64_t g, int64_t parts) {
        int64_t& done = parts_[g].done;
        if (__atomic_add_fetch(&done, 1, __ATOMIC_ACQ_REL) < parts) return false;
        done = 0;
        return true;
    }

   private:
    struct alignas(64) Line {
        unsigned char bytes[64];
    };
    struct alignas(64) Parts {
        int64_t done = 0;
    };
    std::vector<Line> memory_;
    std::vector<Parts> parts_;
    int64_t lines_ = 0;
};

#ifdef PACELINE_INT8

// Quantizes a group of 64.
inline void quantize_group(const Vec (&values)[kGroup / kLanes], QuantizedGroup& to) {
    Vec largest = {};
    for (const Vec& v : values) {
        const Vec size = v < 0.0f ? -v : v;
        largest = size > largest ? size : largest;
    }
    const float most = _mm512_reduce_max_ps(__m512(largest));
    to.scale = most / 127.0f;
    const float factor = most > 0 ? 127.0f / most : 0.0f;
    __m512i total = _mm512_setzero_si512();
    for (int i = 0; i < kGroup / kLanes; ++i) {
        const __m512i whole = _mm512_cvtps_epi32(__m512(values[i] * factor));
        total = _mm512_add_epi32(total, whole);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to.numbers + i * kLanes),
                         _mm512_cvtsepi32_epi8(whole));
    }
    to.minus = -128 * _mm512_reduce_add_epi32(total);
}

#else

inline void quantize_group(const Vec (&)[kGroup / kLanes], QuantizedGroup&) {}

#endif

// The same of numbers in memory.
inline void quantize_group(const float* from, QuantizedGroup& to) {
    Vec values[kGroup / kLanes];
    for (int i = 0; i < kGroup / kLanes; ++i) values[i] = load(from + i * kLanes);
    quantize_group(values, to);
}

// The same of numbers times norm weights, before the norm's factor is known.
inline void quantize_group(const float* from, const float* weights, QuantizedGroup& to) {
    Vec values[kGroup / kLanes], square = {};
    for (int i = 0; i < kGroup / kLanes; ++i) {
        const Vec x = load(from + i * kLanes);
        square += x * x;
        values[i] = x * load(weights + i * kLanes);
    }
    quantize_group(values, to);
    to.square = sum(square);
}

// Operands: float rows or quantized rows; an output may also be quantized for the next norm, which
// has these weights.
struct Input {
    Rows<const float> floats;
    const QuantizedRows* quantized = nullptr;
};
struct Output {
    Rows<float> floats;
    QuantizedRows* quantized = nullptr;
    QuantizedRows* normed = nullptr;
    const float* weights = nullptr;
};

}  // namespace paceline
