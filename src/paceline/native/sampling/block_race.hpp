// Gumbel race with bounds: the smallest noise and the largest logit of a block bound the scores in
// it, and only blocks that may beat the best token are opened.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "sampling/noise.hpp"
#include "sampling/truncation.hpp"

namespace paceline {

// Smallest score difference that is decided here: numpy's logarithms may round differently.
constexpr double kSlack = 1e-9;

constexpr int64_t kUndecided = -1;

template <class Number>
class BlockRace {
public:
    // Takes up a row. False if it holds NaN, or its largest entry is not finite.
    bool begin(const Logits<Number>& row, double temperature, const NoiseKey& key) {
        row_ = row;
        key_ = key;
        if (row.size <= 0 || !find_maxima()) return false;
        const Number peak = *std::max_element(maxima_.begin(), maxima_.end());
        if (!std::isfinite(peak)) return false;
        scale_ = {double(peak), temperature};
        const int64_t blocks = int64_t(maxima_.size());
        least_.find(key, blocks);
        bounds_.resize(blocks);
        for (int64_t b = 0; b < blocks; b += kEight) {
            const Eight maxima = *reinterpret_cast<const Eight*>(&maxima_[b]);
            const Doubles least = *reinterpret_cast<const Doubles*>(&least_.noise[b]);
            *reinterpret_cast<Doubles*>(&bounds_[b]) = scaled(maxima) - logarithm(least);
        }
        return true;
    }

    const Logits<Number>& row() const { return row_; }
    const Scale& scale() const { return scale_; }

    // The k-th largest logit of the row, for k not above its size.
    Number largest(int64_t k) {
        // The k-th largest maximum is not above it, where there are so many.
        Number bound = -std::numeric_limits<Number>::infinity();
        if (k <= int64_t(maxima_.size())) {
            some_ = maxima_;
            bound = kth(k);
        }
        some_.clear();
        if (std::isfinite(bound)) {
            for (int64_t b = 0; b < int64_t(maxima_.size()); ++b) {
                if (maxima_[b] < bound) continue;
                for (int64_t id = first_of(b), m = 0; m < kMembers && id < row_.size; ++m) {
                    if (row_.at[id] >= bound) some_.push_back(row_.at[id]);
                    id += kApart;
                }
            }
        } else {
            some_.assign(row_.at, row_.at + row_.size);
        }
        return kth(k);
    }

    // The winner among retained tokens; `kUndecided` on near ties and if there is none.
    int64_t best(const Kept<Number>& kept) {
        score_ = second_ = -std::numeric_limits<double>::infinity();
        token_ = kUndecided;
        double likely = -std::numeric_limits<double>::infinity();
        for (int64_t b = 0; b < int64_t(bounds_.size()); ++b) {
            if (kept(maxima_[b])) likely = std::max(likely, bounds_[b]);
        }
        // First the one with the highest bound: mostly the winner is there, or it excludes most.
        for (const bool first : {true, false}) {
            for (int64_t b = 0; b < int64_t(bounds_.size()); ++b) {
                if (!kept(maxima_[b]) || (bounds_[b] == likely) != first) continue;
                if (bounds_[b] >= score_ - kSlack) open(b, kept);
            }
        }
        return score_ > second_ + kSlack ? token_ : kUndecided;
    }

private:
    typedef Number Eight
        __attribute__((vector_size(sizeof(Number) * kEight), aligned(4), may_alias));
    static constexpr Number kNone = -std::numeric_limits<Number>::infinity();

    Doubles scaled(Eight logits) const {
        return (__builtin_convertvector(logits, Doubles) - scale_.peak) / scale_.temperature;
    }

    // The largest logit of each block, -infinity for blocks without a member. False if one is NaN.
    bool find_maxima() {
        maxima_.assign((row_.size + kSpan - 1) / kSpan * kApart, kNone);
        int odd = 0;
        for (int64_t first = 0; first < row_.size; first += kApart) {
            Number* most = &maxima_[first / kSpan * kApart];
            const Number* at = row_.at + first;
            const int64_t count = std::min<int64_t>(kApart, row_.size - first);
            for (int64_t i = 0; i < count; ++i) {
                most[i] = most[i] < at[i] ? at[i] : most[i];
                odd |= at[i] != at[i];
            }
        }
        return !odd;
    }

    Number kth(int64_t k) {
        std::nth_element(some_.begin(), some_.begin() + k - 1, some_.end(), std::greater<>());
        return some_[k - 1];
    }

    // Scores the retained members of a block.
    void open(int64_t block, const Kept<Number>& kept) {
        const Doubles least = Doubles{} + least_.noise[block];
        const Longs owner = Longs{} + least_.owners[block];
        for (int64_t member = 0; member < kMembers; member += kEight) {
            const int64_t first = first_of(block) + member * kApart;
            Eight logits;
            for (int64_t lane = 0; lane < kEight; ++lane) {
                const int64_t id = first + lane * kApart;
                const Number logit = id < row_.size ? row_.at[id] : kNone;
                logits[lane] = kept(logit) ? logit : kNone;
            }
            const Doubles values = scaled(logits);
            const Longs ids = count_from(0) * kApart + first;
            const Doubles scores = values - logarithm(token_noise(key_, ids, least, owner));
            for (int lane = 0; lane < kEight; ++lane) {
                if (!(scores[lane] > second_) || values[lane] < kept.lowest) continue;
                if (scores[lane] > score_) {
                    second_ = score_;
                    score_ = scores[lane];
                    token_ = ids[lane];
                } else {
                    second_ = scores[lane];
                }
            }
        }
    }

    Logits<Number> row_;
    NoiseKey key_;
    Scale scale_;
    std::vector<Number> maxima_, some_;
    std::vector<double> bounds_;
    Least least_;
    double score_, second_;
    int64_t token_;
};

}  // namespace paceline
