#include "sampling/rescore.hpp"

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

}  // namespace paceline
