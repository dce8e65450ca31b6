// Attention of ragged rows over paged keys and values: rotary embedding, cache write, softmax.
//
// Sums run over a row's visible keys in path order, in chunks of fixed length. So a row's result is
// bit-identical wherever its keys are stored, and in any batch.

#pragma once

#include <cstdint>

#include "kernels/quantize.hpp"
#include "kernels/visible_keys.hpp"

namespace paceline {

constexpr int kWidest = 576;  // head

// Storage of keys and values, 32 tokens per block: keys [width, 32], values [32, width].
enum class KvDtype : int32_t { kFp32, kFp16 };

// Sizes of one layer.
struct Shape {
    int32_t heads, kv_heads;  // at most 48 heads per kv head
    int32_t width;            // of a head, a multiple of 16, at most kWidest
    KvDtype kv_dtype;
    float eps;                // of the norms of queries and keys
    float scale;              // of scores
    int32_t window;           // newest keys that a row sees; 0 for all
    int32_t own;              // whether it counts back from a row's position, if that is in front of
                              // the last key that the row sees; else from that key
    int32_t rotated;          // first numbers of a head that are rotated, in halves; 0 for none
    int32_t value_norm;       // whether values are normed, without weights
};

// Pointers to one layer's data.
struct Layer {
    void* keys;           // [blocks, kv_heads] blocks
    void* values;         // likewise
    const float* angles;  // [positions, rotated]: cosines of half as many angles, then their sines
    const float* query_norm;  // [width], or null
    const float* key_norm;    // [width], or null
    const float* sinks;       // [heads], a score of no key, before all keys; or null
    const float* query_factors;  // [positions], beside the scale; or null
};

// Which rows attend; keys and values of all are stored.
//   kLast: the last of each sequence
//   kLent: all, over keys and values of others; they have none themselves, and nothing is stored
//   kNone: none; rows are keys and values alone
enum class Asked : int32_t { kAll, kLast, kLent, kNone };

// Rotate, store keys and values, attend.
//   qkv:  [count, (heads + 2 * kv_heads) * width]; of kLent [count, heads * width],
//         of kNone [count, 2 * kv_heads * width]
//   out:  [count, heads * width]; rows not asked for are unchanged. Quantized only if the query
//         heads of each kv head are whole groups
void attention(const Shape& shape, const Layer& layer, VisibleKeys& visible, Asked asked,
                    Rows<const float> qkv, const Output& out);

}  // namespace paceline
