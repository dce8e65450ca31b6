#include "rounding.hpp"

#include <atomic>
#include <cmath>

namespace paceline {
namespace {

constexpr int kFew = 16;  // rows that every thread makes for itself

void round_row(const Step& step, const float* x, int64_t r, RoundedRows& to) {
    const int64_t width = step.matrix.inputs;
    const float norm = step.norm ? norm_factor(x, width, step.eps) : 1.0f;
    for (int64_t g = 0; g < width / kGroup; ++g) {
        Vec values[kGroup / kLanes];
        for (int i = 0; i < kGroup / kLanes; ++i) {
            const int64_t at = g * kGroup + i * kLanes;
            values[i] = load(x + at);
            if (step.norm) values[i] = values[i] * norm * load(step.norm + at);
        }
        round_group(values, to.group(g)[r]);
    }
}

// A row that is rounded but for the norm's factor, which all groups make together.
void norm_row(const Step& step, const RoundedRows& x, int64_t r, RoundedRows& to) {
    const int64_t groups = step.matrix.inputs / kGroup;
    float square = 0;
    for (int64_t g = 0; g < groups; ++g) square += x.group(g)[r].square;
    const float norm = 1.0f / std::sqrt(square / float(step.matrix.inputs) + step.eps);
    for (int64_t g = 0; g < groups; ++g) {
        RoundedGroup& group = to.group(g)[r];
        group = x.group(g)[r];
        group.scale *= norm;
    }
}

void make_row(const Step& step, const Input& x, int64_t r, RoundedRows& to) {
    x.rounded ? norm_row(step, *x.rounded, r, to) : round_row(step, x.floats[r], r, to);
}

}  // namespace

Rounding::Rounding(const Step& step, int64_t rows, const Input& x, Room& room)
    : step_(&step), rows_(rows), x_(x) {
    static std::atomic<uint64_t> products{0};
    if (x.rounded && !step.norm) {
        shared_ = x.rounded;
    } else if (rows <= kFew) {
        product_ = ++products;
    } else {
        shared_ = &room.rounded;
        room.rounded.fit(rows, step.matrix.inputs);
        each(rows, true, [x, to = &room.rounded, of = &step](int64_t r) {
            make_row(*of, x, r, *to);
        });
    }
}

const RoundedRows& Rounding::own() const {
    thread_local RoundedRows rounded;
    thread_local uint64_t product = 0;
    if (product != product_) {
        product = product_;
        rounded.fit(rows_, step_->matrix.inputs);
        for (int64_t r = 0; r < rows_; ++r) make_row(*step_, x_, r, rounded);
    }
    return rounded;
}

}  // namespace paceline
