#include "sampling/rescore.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "sampling/top_k.hpp"

namespace paceline {

void rescore(const Matrix& head, const float* hidden, float* logits, int64_t count, int64_t best) {
    thread_local std::vector<int32_t> places;
    thread_local std::vector<float> row;
    find_top_k(logits, count, best, places);
    row.resize(head.inputs);
    for (const int32_t place : places) {
        read_row(head, place, row.data());
        logits[place] = dot(row.data(), hidden, head.inputs);
    }
}

void clustered(const Matrix& head, int64_t clusters, int64_t size, const int32_t* tokens,
               int64_t best, const float* hidden, const float* scores, float* logits,
               Scratch& scratch) {
    std::vector<int32_t> places;
    find_top_k(scores, clusters, best, places);
    std::fill_n(logits, clusters * size, -std::numeric_limits<float>::infinity());
    const int64_t tiles = (size + kLanes - 1) / kLanes;
    MatmulOp one{{head}, 1, Gate::kNone, 1.0f, nullptr, 0.0f};
    one.parts[0].outputs = size;
    scratch.made.resize(size);
    for (const int32_t place : places) {
        one.parts[0].tiles = head.tiles + place * tiles * head.tile_bytes();
        matmul(one, 1, {{hidden, head.inputs}, nullptr}, {nullptr, 0},
               {{scratch.made.data(), size}, nullptr}, scratch);
        for (int64_t i = 0; i < size; ++i) logits[tokens[place * size + i]] = scratch.made[i];
    }
}

}  // namespace paceline
