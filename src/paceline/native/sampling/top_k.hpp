// Top k and argmax of rows of logits.

#pragma once

#include <cstdint>
#include <vector>

#include "kernels/vectors.hpp"

namespace paceline {

constexpr int kPieces = 16;  // of a row

// The largest number of a piece of a row, and its place in the row, of equal ones the first; -1 if
// one is infinite or no number.
struct __attribute__((may_alias)) Peak {
    int32_t place;
    float value;
};

// Argmax of each row into its first peak, `[rows, kPieces]`. Each thread reads the piece that it
// wrote last in the matmul before.
void find_peaks(Rows<const float> numbers, int64_t rows, int64_t width, Rows<Peak> peaks);

// Places of the `best` largest of `count` numbers, of equal ones the first, in any order; all if
// there are no more.
void find_top_k(const float* numbers, int64_t count, int64_t best, std::vector<int32_t>& found);

// The same, the largest first, with the numbers. False if there are fewer that are numbers at all.
bool rank_top_k(const float* numbers, int64_t count, int64_t best, int64_t* places, float* values);

}  // namespace paceline
