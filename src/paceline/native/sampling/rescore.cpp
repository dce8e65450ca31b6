#include "sampling/rescore.hpp"

#include <vector>

#include "sampling/top_k.hpp"
#include "kernels/vectors.hpp"

namespace paceline {
namespace {

constexpr int64_t kLine = 64;  // bytes that the processor fetches together

template <class Number>
void rescore_rows(const Number* rows, const float* scales, int64_t width, const float* hidden,
                 const std::vector<int32_t>& places, float* logits) {
    // Rows lie far apart: prefetch all first.
    for (const int32_t place : places) {
        const char* row = reinterpret_cast<const char*>(rows + place * width);
        for (int64_t at = 0; at < int64_t(sizeof(Number)) * width; at += kLine) {
            __builtin_prefetch(row + at);
        }
    }
    for (const int32_t place : places) {
        const float value = dot(rows + place * width, hidden, width);
        logits[place] = scales ? value * scales[place] : value;
    }
}

}  // namespace

void rescore(const Embeddings& head, const float* hidden, float* logits, int64_t count,
            int64_t best) {
    thread_local std::vector<int32_t> places;
    find_top_k(logits, count, best, places);
    if (head.floats) {
        rescore_rows(head.floats, nullptr, head.width, hidden, places, logits);
    } else {
        rescore_rows(head.numbers, head.scales, head.width, hidden, places, logits);
    }
}

}  // namespace paceline
