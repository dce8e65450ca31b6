// Rows of embeddings by token id.

#pragma once

#include <cstdint>
#include <cstring>

#include "threads/program.hpp"

namespace paceline {

// Embedding table: int8 rows with a scale each, or float32 rows; then extra float32 rows.
struct Embeddings {
    int64_t width, known;
    const int8_t* numbers;
    const float* scales;
    const float* floats;
    const float* more;
};

// Source of token ids: entry r * stride + offset of an input, or, if that is -1, a buffer that
// argmax filled.
struct Tokens {
    int32_t input, stride, offset;
    View picked;
};

inline void embed(const Embeddings& table, int64_t id, float* to) {
    if (id >= table.known || table.floats) {
        const float* from = id < table.known ? table.floats + id * table.width
                                             : table.more + (id - table.known) * table.width;
        std::memcpy(to, from, sizeof(float) * table.width);
        return;
    }
    const int8_t* from = table.numbers + id * table.width;
    for (int64_t d = 0; d < table.width; ++d) to[d] = float(from[d]) * table.scales[id];
}

}  // namespace paceline
