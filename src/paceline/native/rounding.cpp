#include "rounding.hpp"

#include <atomic>

namespace paceline {
namespace {

constexpr int kFew = 16;  // rows that every thread rounds for itself

void round_row(const Step& step, Rows<const float> x, int64_t r, RoundedRows& to) {
    const int64_t width = step.matrix.inputs;
    const float norm = step.norm ? norm_factor(x[r], width, step.eps) : 1.0f;
    for (int64_t g = 0; g < width / kGroup; ++g) {
        Vec values[kGroup / kLanes];
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const int64_t at = g * kGroup + i * kLanes;
            values[i] = load(x[r] + at);
            if (step.norm) values[i] = values[i] * norm * load(step.norm + at);
        }
        round_group(values, to.group(g)[r]);
    }
}

}  // namespace

Rounding::Rounding(const Step& step, int64_t rows, const Input& x, Room& room)
    : step_(&step), rows_(rows), x_(x.floats), shared_(x.rounded) {
    static std::atomic<uint64_t> products{0};
    if (shared_) return;
    if (rows <= kFew) {
        product_ = ++products;
        return;
    }
    shared_ = &room.rounded;
    room.rounded.fit(rows, step.matrix.inputs);
    each(rows, true, [from = x.floats, to = &room.rounded, of = &step](int64_t r) {
        round_row(*of, from, r, *to);
    });
}

const RoundedRows& Rounding::own() const {
    thread_local RoundedRows rounded;
    thread_local uint64_t product = 0;
    if (product != product_) {
        product = product_;
        rounded.fit(rows_, step_->matrix.inputs);
        for (int64_t r = 0; r < rows_; ++r) round_row(*step_, x_, r, rounded);
    }
    return rounded;
}

}  // namespace paceline
