// Rows rounded to int8 by groups of 64, each by itself, for products with whole numbers.

#pragma once

#include <cstring>

#include "product.hpp"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#define PACELINE_PRODUCTS 1
#endif

namespace paceline {

struct Rounded {
    const int8_t* numbers;
    const float* scales;   // of each group
    const int32_t* minus;  // -128 times the sum of each group's numbers
};

// The rows of a product behind the norm that stands before it. Of few rows every thread rounds all for
// itself when it first asks for some: what another has rounded would take longer to fetch.
class RoundedRows {
   public:
    RoundedRows(const Step& step, int64_t rows, Rows<const float> x, Room& room);

    // Those from `first` on.
    Rounded from(int64_t first) const {
        const Room& room = shared_ ? *shared_ : own();
        const int64_t width = step_->matrix.inputs, groups = width / kGroup;
        return {room.numbers.data() + first * width, room.scales.data() + first * groups,
                room.minus.data() + first * groups};
    }

   private:
    const Room& own() const;

    const Step* step_;
    int64_t rows_;
    Rows<const float> x_;
    const Room* shared_;
    uint64_t product_;  // tells one product from another
};

#ifdef PACELINE_PRODUCTS

// The same, rounded here, whatever follows. Compilers may join a product with a sum behind it, and
// do so in one place and not in another.
inline Vec settled(Vec x) {
    asm("" : "+v"(x));
    return x;
}

// Four neighbours of a row, in all lanes.
inline __m512i four(const int8_t* at) {
    int32_t numbers;
    std::memcpy(&numbers, at, 4);
    return _mm512_set1_epi32(numbers);
}

#endif

}  // namespace paceline
