// Activations quantized to int8 in groups of 32, row by row.

#pragma once

#include <cfloat>
#include <vector>

#include "kernels/formats.hpp"

namespace paceline {

constexpr int kGroup = kCell;  // activations that share a scale

// A group of a row: numbers times `scale`.
struct QuantizedGroup {
    int8_t numbers[kGroup];  // from -127 to 127
    float scale;             // not finite if one of the group is not
    float total;             // the sum of the numbers, times the scale
    int32_t sums[2];         // of the numbers 0-15 and 16-31
};

// Stored by group, each in cache lines of its own, since different threads write them.
class QuantizedRows {
   public:
    void fit(int64_t rows, int64_t width) {
        lines_ = (rows * int64_t{sizeof(QuantizedGroup)} + sizeof(Line) - 1) / sizeof(Line);
        if (int64_t(memory_.size()) < lines_ * (width / kGroup)) memory_.resize(lines_ * (width / kGroup));
    }

    QuantizedGroup* group(int64_t g) {
        return reinterpret_cast<QuantizedGroup*>(memory_.data() + g * lines_);
    }
    const QuantizedGroup* group(int64_t g) const {
        return reinterpret_cast<const QuantizedGroup*>(memory_.data() + g * lines_);
    }

   private:
    struct alignas(64) Line {
        unsigned char bytes[64];
    };
    std::vector<Line> memory_;
    int64_t lines_ = 0;
};

// Rounds to nearest, ties to even, by adding 1.5 * 2^23.
PACELINE_INLINE void quantize_group(const Vec (&values)[2], QuantizedGroup& to) {
    const Vec top = larger(size_of(values[0]), size_of(values[1]));
    const float most = largest(top);
    const float factor = most > 0 ? 127.0f / most : 0.0f;
    int32_t odd = 0;
    for (int h = 0; h < 2; ++h) {
        const Vec shifted = values[h] * factor + 12582912.0f;
        const Ints sound = size_of(values[h]) <= all(FLT_MAX);
        int32_t codes[kLanes], whole[kLanes];
        std::memcpy(codes, &shifted, sizeof codes);
        std::memcpy(whole, &sound, sizeof whole);
        int32_t total = 0;
        for (int lane = 0; lane < kLanes; ++lane) {
            const auto code = int8_t(uint32_t(codes[lane]) - 0x4B400000u);  // of odd numbers any
            to.numbers[h * kLanes + lane] = code;
            total += code;
            odd |= ~whole[lane];
        }
        to.sums[h] = total;
    }
    to.scale = odd ? NAN : most / 127.0f;
    to.total = to.scale * float(to.sums[0] + to.sums[1]);
}

// The same of numbers in memory.
PACELINE_INLINE void quantize_group(const float* from, QuantizedGroup& to) {
    const Vec values[2] = {load(from), load(from + kLanes)};
    quantize_group(values, to);
}

// Operands: float rows or quantized rows.
struct Input {
    Rows<const float> floats;
    const QuantizedRows* quantized = nullptr;
};
struct Output {
    Rows<float> floats;
    QuantizedRows* quantized = nullptr;
};

}  // namespace paceline
