// Gradual prefetch during other work: many requests at once would stall the core.

#pragma once

#include <cstdint>

namespace paceline {

template <class Number>
class Prefetch {
   public:
    // Nothing.
    Prefetch() = default;

    // Pieces of so many numbers each; `at` must stay.
    Prefetch(const Number* const* at, int count, int64_t size)
        : at_(at), behind_(at + count), lines_((size + kLine - 1) / kLine), left_(lines_) {}

    // Spreads the prefetch over so many steps.
    void within(int64_t steps) {
        steps_ = steps > 0 ? steps : 1;
        pace_ = (behind_ - at_) * lines_;
        due_ = 0;
    }

    void step() {
        for (due_ += pace_; due_ >= steps_; due_ -= steps_) {
            __builtin_prefetch(*at_ + kLine * (lines_ - left_));
            if (--left_ > 0) continue;
            left_ = lines_;
            if (++at_ == behind_) *this = {};
        }
    }

   private:
    static constexpr int64_t kLine = 64 / sizeof(Number);  // numbers that are fetched together
    const Number* const* at_ = nullptr;
    const Number* const* behind_ = nullptr;
    int64_t lines_ = 0, left_ = 0, pace_ = 0, due_ = 0, steps_ = 1;
};

}  // namespace paceline
