// Attention of ragged rows over paged keys and values, every row along its own path.
//
// A row's path is the keys it sees in order of position: a run of a sequence's stored tokens from
// the first on, then single stored tokens (a drafted node's ancestors, and itself). Whatever is
// summed over keys is summed in the order of the path, in chunks of fixed length, so that a row's
// result is the same bits wherever its keys are stored, and whatever rows it shares a pass with.

#pragma once

#include <cstdint>
#include <vector>

#include "vectors.hpp"

namespace paceline {

constexpr int kBlock = 32;       // tokens per block of the cache
constexpr int kRowFields = 5;    // int32 per row of `rows`, see Plan

// What rows there are and what each sees.
struct Plan {
    // [count, 5] position; storage slot (block * 32 + place in it);
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
    int32_t heads, kv_heads;  // at most 24 heads per kv head
    int32_t width;            // of a head, a multiple of 16
    int32_t half;             // keys and values are stored as fp16
    float eps;                // of the norms of queries and keys
};

// Pointers to one layer's data.
struct Layer {
    void* keys;           // [blocks, kv_heads, width, 32]
    void* values;         // [blocks, kv_heads, 32, width]
    const float* angles;  // [positions, width]: cosines of width / 2 angles, then their sines
    const float* query_norm;  // [width], or null
    const float* key_norm;    // [width], or null
};

// Rows of one sequence that share loads.
struct Group {
    int first, count;  // rows
    int longest;       // path
    int longest_run, shortest_run;
    int single_blocks[2];  // of its sequence's table: the first that holds a single token, and the
                           // one behind the last; equal if there is none
};

// What all layers of a pass share: found once.
struct Paths {
    Plan plan;
    std::vector<Group> groups;
    int chunks;  // of the longest path
    std::vector<float> queries, partial;  // room

    // Throws std::out_of_range if a row stands at position `longest` or behind it.
    void find(const Shape& shape, const Plan& plan, int64_t longest);
};

// Rotate, store keys and values, attend.
//   qkv:  [count, (heads + 2 * kv_heads) * width]
//   out:  [count, heads * width]
void path_attention(const Shape& shape, const Layer& layer, Paths& paths, Rows<const float> qkv,
                    Rows<float> out);

}  // namespace paceline
