// Attention of ragged rows over paged keys and values, every row along its own path.
//
// A row's path is the keys it sees in order of position: a run of a sequence's stored tokens from
// the first on, then single stored tokens (a drafted node's ancestors, and itself). Whatever is
// summed over keys is summed in the order of the path, in chunks of fixed length, so that a row's
// result is the same bits wherever its keys are stored, and whatever rows it shares a pass with.

#pragma once

#include <cstdint>

namespace paceline {

constexpr int kBlock = 32;       // tokens per block of the cache
constexpr int kRowFields = 5;    // int32 per row of `rows`, see Plan

// What rows there are and what each sees.
struct Plan {
    // [count, 5] position; storage slot (block * 32 + place in it; -1: an idle row, result 0);
    // begin of its sequence's block table in `tables`; length of its run; begin of its single
    // tokens in `singles`. Rows of a sequence stand together.
    const int32_t* rows;
    int64_t count;
    const int32_t* tables;   // block ids
    const int32_t* singles;  // stored places of single tokens in their sequence; ends at
                             // `position + 1 - run` per row
};

// Sizes of one layer.
struct Shape {
    int heads, kv_heads;  // at most 24 heads per kv head
    int width;            // of a head, a multiple of 16
    bool half;                   // keys and values are stored as fp16
    float eps;                   // of the norms of queries and keys
};

// Pointers to one layer's data.
struct Layer {
    void* keys;           // [blocks, kv_heads, width, 32]
    void* values;         // [blocks, kv_heads, 32, width]
    const float* angles;  // [positions, width]: cosines of width / 2 angles, then their sines
    const float* query_norm;  // [width], or null
    const float* key_norm;    // [width], or null
};

// Rotate, store keys and values, attend.
//   qkv:  float32 [count, (heads + 2 * kv_heads) * width]
//   out:  float32 [count, heads * width]
void path_attention(const Shape& shape, const Layer& layer, const Plan& plan, const float* qkv,
                    float* out);

}  // namespace paceline
