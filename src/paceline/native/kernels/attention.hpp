// Attention of ragged rows over paged keys and values: rotary embedding, cache write, softmax.
//
// Sums run over a row's visible keys in path order, in chunks of fixed length. So a row's result is
// bit-identical wherever its keys are stored, and in any batch.

#pragma once

#include <cstdint>

#include "threads/readahead.hpp"
#include "kernels/visible_keys.hpp"
#include "kernels/quantized.hpp"
#include "kernels/vectors.hpp"

namespace paceline {

constexpr int kWidest = 256;  // head

// Storage of keys and values, see `kv_layout.hpp`.
enum class KvDtype : int32_t { kFp32, kFp16, kBf16 };

// Sizes of one layer.
struct Shape {
    int32_t heads, kv_heads;  // at most 48 heads per kv head
    int32_t width;            // of a head, a multiple of 16, at most 256
    KvDtype kv_dtype;
    float eps;                // of the norms of queries and keys
};

// Pointers to one layer's data.
struct Layer {
    void* keys;           // [blocks, kv_heads], each as `stored.hpp` says
    void* values;         // likewise
    const float* angles;  // [positions, width]: cosines of width / 2 angles, then their sines
    const float* query_norm;  // [width], or null
    const float* key_norm;    // [width], or null
};

// Which rows attend; keys and values of all are stored.
enum class Asked { kAll, kLast };  // kLast: the last of each sequence

// Rotate, store keys and values, attend.
//   qkv:  [count, (heads + 2 * kv_heads) * width]
//   out:  [count, heads * width]; rows not asked for are unchanged. Quantized only if the query
// heads
//         of each kv head are whole groups
void attention(const Shape& shape, const Layer& layer, VisibleKeys& visible, Asked asked,
                    Rows<const float> qkv, const Output& out);

// Notes the blocks of keys and values that are read.
void note_blocks(const Shape& shape, const Layer& layer, const VisibleKeys& visible, AccessTrace& trace);

}  // namespace paceline
