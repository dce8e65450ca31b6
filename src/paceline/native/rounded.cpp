#include "rounded.hpp"

#include <atomic>

namespace paceline {

#ifndef PACELINE_PRODUCTS

RoundedRows::RoundedRows(const Step&, int64_t, Rows<const float>, Room&) {}
const Room& RoundedRows::own() const { return *shared_; }

#else

namespace {

constexpr int kFew = 16;  // rows that every thread rounds for itself

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

void fit(Room& room, int64_t rows, int64_t width) {
    room.numbers.resize(rows * width);
    room.scales.resize(rows * width / kGroup);
    room.minus.resize(rows * width / kGroup);
}

void round_into(Room& room, const Step& step, Rows<const float> x, int64_t r) {
    const int64_t width = step.matrix.inputs, groups = width / kGroup;
    round_row(step, x[r], room.numbers.data() + r * width, room.scales.data() + r * groups,
              room.minus.data() + r * groups);
}

}  // namespace

RoundedRows::RoundedRows(const Step& step, int64_t rows, Rows<const float> x, Room& room)
    : step_(&step), rows_(rows), x_(x), shared_(rows > kFew ? &room : nullptr) {
    static std::atomic<uint64_t> products{0};
    product_ = ++products;
    if (!shared_) return;
    fit(room, rows, step.matrix.inputs);
    each(rows, true, [=, to = &room, of = &step](int64_t r) { round_into(*to, *of, x, r); });
}

const Room& RoundedRows::own() const {
    thread_local Room room;
    thread_local uint64_t product = 0;
    if (product != product_) {
        product = product_;
        fit(room, rows_, step_->matrix.inputs);
        for (int64_t r = 0; r < rows_; ++r) round_into(room, *step_, x_, r);
    }
    return room;
}

#endif

}  // namespace paceline
