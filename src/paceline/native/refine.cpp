#include "refine.hpp"

#include <vector>

#include "best.hpp"
#include "vectors.hpp"

namespace paceline {
namespace {

constexpr int64_t kLine = 64;  // bytes that the processor fetches together

typedef int8_t ByteVec __attribute__((vector_size(kLanes), aligned(1), may_alias));

// Numbers of 16 columns.
Vec numbers(const float* at) { return load(at); }
Vec numbers(const int8_t* at) {
#ifdef __AVX512F__  // which compilers do not all see
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    // All lanes: GCC 12 warns of the same without a mask.
    return __builtin_convertvector(IntVec(_mm512_maskz_cvtepi8_epi32(0xffff, bytes)), Vec);
#else
    return __builtin_convertvector(*reinterpret_cast<const ByteVec*>(at), Vec);
#endif
}

template <class Number>
float dot(const Number* row, const float* hidden, int64_t width) {
    Vec total = {};
    for (int64_t d = 0; d < width; d += kLanes) total += numbers(row + d) * load(hidden + d);
    return sum(total);
}

template <class Number>
void refine_rows(const Number* rows, const float* scales, int64_t width, const float* hidden,
                 const std::vector<int32_t>& places, float* logits) {
    // Rows lie far apart: all are asked for before the first is needed.
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

void refine(const Embeddings& head, const float* hidden, float* logits, int64_t count,
            int64_t best) {
    thread_local std::vector<int32_t> places;
    find_best(logits, count, best, places);
    if (head.floats) {
        refine_rows(head.floats, nullptr, head.width, hidden, places, logits);
    } else {
        refine_rows(head.numbers, head.scales, head.width, hidden, places, logits);
    }
}

}  // namespace paceline
