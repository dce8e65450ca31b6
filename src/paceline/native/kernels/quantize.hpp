// Quantized input rows of int8 and int4 matmuls.

#pragma once

#include <cstring>

#include "kernels/matmul.hpp"

namespace paceline {

// Rows from one on, quantized.
struct QuantizedSlice {
    const QuantizedRows* rows;
    int64_t first;

    const QuantizedGroup* group(int64_t g) const { return rows->group(g) + first; }
};

// Input rows after the norm, quantized. Of few rows every thread makes its own copy: fetching those
// of another core takes longer.
class Quantizer {
   public:
    Quantizer(const MatmulOp& op, int64_t rows, const Input& x, Scratch& scratch);

    // Those from `first` on.
    QuantizedSlice from(int64_t first) const { return {shared_ ? shared_ : &own(), first}; }

   private:
    const QuantizedRows& own() const;

    const MatmulOp* op_;
    int64_t rows_;
    Input x_;
    const QuantizedRows* shared_ = nullptr;
    uint64_t op_id_ = 0;  // tells one product from another
};

#ifdef PACELINE_INT8

// Forces rounding: compilers fuse a multiply with a later add in one place and not in another.
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
