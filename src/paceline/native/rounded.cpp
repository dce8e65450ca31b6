#include "rounded.hpp"

namespace paceline {

#ifndef PACELINE_PRODUCTS

void round_rows(const Step&, int64_t, Rows<const float>, Room&) {}

#else

namespace {

constexpr int kAlone = 6000;  // numbers that one thread rounds while another would wake up

void round_row(const Step& step, const float* x, int8_t* numbers, float* scales, int32_t* minus) {
    const int64_t width = step.matrix.inputs;
    const float norm = step.norm ? norm_factor(x, width, step.eps) : 1.0f;
    for (int64_t g = 0; g < width / kGroup; ++g) {
        Vec values[kGroup / kLanes];
        Vec largest = {};
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const int64_t at = g * kGroup + i * kLanes;
            Vec v = load(x + at);
            if (step.norm) v = v * norm * load(step.norm + at);
            values[i] = v;
            const Vec size = v < 0.0f ? -v : v;
            largest = size > largest ? size : largest;
        }
        const float most = _mm512_reduce_max_ps(__m512(largest));
        scales[g] = most / 127.0f;
        const float factor = most > 0 ? 127.0f / most : 0.0f;
        __m512i total = _mm512_setzero_si512();
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const __m512i whole = _mm512_cvtps_epi32(__m512(values[i] * factor));
            total = _mm512_add_epi32(total, whole);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + g * kGroup + i * kLanes),
                             _mm512_cvtsepi32_epi8(whole));
        }
        minus[g] = -128 * _mm512_reduce_add_epi32(total);
    }
}

}  // namespace

void round_rows(const Step& step, int64_t rows, Rows<const float> x, Room& room) {
    const int64_t width = step.matrix.inputs, groups = width / kGroup;
    room.numbers.resize(rows * width);
    room.scales.resize(rows * groups);
    room.minus.resize(rows * groups);
    each(rows, rows * width > kAlone, [&](int64_t r) {
        round_row(step, x[r], room.numbers.data() + r * width, room.scales.data() + r * groups,
                  room.minus.data() + r * groups);
    });
}

#endif

}  // namespace paceline
