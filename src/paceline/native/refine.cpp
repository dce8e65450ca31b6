#include "refine.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "vectors.hpp"

namespace paceline {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int64_t kParts = 8;  // of a row; 16 maxima of each are noted, one per lane
constexpr int64_t kLine = 64;  // bytes that the processor fetches together

typedef int8_t ByteVec __attribute__((vector_size(kLanes), aligned(1), may_alias));

// Bit i says whether number i is as large as `least`.
uint32_t large(const float* at, float least) {
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(at), _mm512_set1_ps(least), _CMP_GE_OQ);
#else
    uint32_t out = 0;
    for (int lane = 0; lane < kLanes; ++lane) out |= uint32_t(at[lane] >= least) << lane;
    return out;
#endif
}

// A number that at least `best` of the row reach, and few others: all maxima are of different
// places.
float threshold(const float* logits, int64_t count, int64_t best) {
    if (best > kParts * kLanes) return kNone;
    const int64_t vectors = count / kLanes;
    float maxima[kParts * kLanes];
    for (int64_t part = 0; part < kParts; ++part) {
        Vec most = all(kNone);
        for (int64_t v = part * vectors / kParts; v < (part + 1) * vectors / kParts; ++v) {
            const Vec x = load(logits + v * kLanes);
            most = x > most ? x : most;
        }
        store(maxima + part * kLanes, most);
    }
    std::nth_element(maxima, maxima + best - 1, maxima + kParts * kLanes, std::greater<float>());
    return maxima[best - 1];
}

// Places of the `best` largest, all if there are no more.
void find_best(const float* logits, int64_t count, int64_t best, std::vector<int32_t>& found) {
    const float least = threshold(logits, count, best);
    found.clear();
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (uint32_t bits = large(logits + i, least); bits; bits &= bits - 1) {
            found.push_back(int32_t(i + __builtin_ctz(bits)));
        }
    }
    for (; i < count; ++i) {
        if (logits[i] >= least) found.push_back(int32_t(i));
    }
    if (int64_t(found.size()) <= best) return;
    std::nth_element(found.begin(), found.begin() + best - 1, found.end(), [=](int a, int b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    });
    found.resize(best);
}

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
