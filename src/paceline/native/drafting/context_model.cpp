#include "drafting/context_model.hpp"

#include <algorithm>
#include <cmath>

#include "sampling/top_k.hpp"

namespace paceline {
namespace {

// All from `methods/statistics/context_model.py` and `trees/candidates.py`.
constexpr double kWeights[] = {0.9, 1.9};
constexpr double kShares[] = {0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95};
constexpr double kTail = 0.03, kFloor = 0.01;

template <int kEdges>
int32_t bucket(const double (&edges)[kEdges], double value) {
    return int32_t(std::upper_bound(edges, edges + kEdges, value) - edges);
}

}  // namespace

void ContextModel::read(const int32_t* tokens, int64_t count, int64_t begin, double weight) {
    const double certain = 1.0;
    for (int64_t end = std::max<int64_t>(begin, 1); end < count; ++end) {
        const int32_t lengths = name({tokens, end, nullptr, nullptr}, kRoot);
        for (int32_t i = 0; i < lengths; ++i) {
            table_.add(names_[i], tokens + end, &certain, 1, weight);
        }
    }
}

void ContextModel::recycle(const Drafted& drafted, int64_t nodes, const float* logits,
                           int64_t width) {
    const int32_t best = int32_t(std::min<int64_t>(width, kWidth));
    int64_t places[kWidth];
    float values[kWidth];
    int32_t tokens[kWidth];
    double shares[kWidth];
    for (int64_t node = kRoot; node < nodes; ++node) {
        if (!rank_top_k(logits + (node + 1) * width, width, best, places, values)) continue;
        double total = 0.0;
        for (int32_t i = 0; i < best; ++i) {
            tokens[i] = int32_t(places[i]);
            total += shares[i] = std::exp(double(values[i]) - double(values[0]));
        }
        for (int32_t i = 0; i < best; ++i) shares[i] /= total;
        const int32_t lengths = name(drafted, int32_t(node));
        for (int32_t i = 0; i < lengths; ++i) table_.add(names_[i], tokens, shares, best, 1.0);
    }
}

void ContextModel::offer(const Drafted& drafted, int32_t node, double reach, const double* rates,
                         std::vector<Offer>& offers) {
    constexpr int32_t kinds = std::size(kWeights) + 1, parts = std::size(kShares) + 1;
    const size_t first = offers.size();
    const auto offered = [&](int32_t token) {
        return std::any_of(offers.begin() + int64_t(first), offers.end(),
                           [&](const Offer& each) { return each.token == token; });
    };
    double left = 1.0;
    for (int32_t length = name(drafted, node); length > 0; --length) {
        const Distribution* distribution = table_.look(names_[length - 1]);
        if (!distribution) continue;
        const int32_t row = ((length - 1) * kinds + bucket(kWeights, distribution->weight)) * parts;
        double rest = 0.0;
        bool open[kWidth];
        for (int32_t i = 0; i < distribution->used; ++i) {
            open[i] = !offered(distribution->tokens[i]);
            if (open[i]) rest += distribution->shares[i];
        }
        for (int32_t i = 0; i < distribution->used && left * reach >= kFloor; ++i) {
            if (!open[i]) continue;
            const double share = distribution->shares[i];
            const int32_t cell = row + bucket(kShares, share / (std::max(rest, share) + kTail));
            offers.push_back({distribution->tokens[i], cell, left * rates[cell]});
            left *= 1 - rates[cell];
            rest -= share;
        }
    }
}

void ContextModel::grow(const int32_t* text, int64_t count, int32_t nodes, int32_t depth,
                        const double* rates) {
    expansion.grow(nodes, depth, [&](int32_t node, double reach) {
        const Drafted drafted{text, count, expansion.tokens.data(), expansion.parents.data()};
        offer(drafted, node, reach, rates, expansion.offers);
    });
}

const Distribution* ContextModel::look(const int32_t* text, int64_t count) {
    const int32_t lengths = name({text, count, nullptr, nullptr}, kRoot);
    return lengths && lengths == count ? table_.look(names_[lengths - 1]) : nullptr;
}

// Names the contexts that end at a node. How many there are.
int32_t ContextModel::name(const Drafted& drafted, int32_t node) {
    const int32_t order = int32_t(names_.size());
    int32_t lengths = 0;
    Name context = 0;
    for (; node != kRoot && lengths < order; node = drafted.parents[node]) {
        names_[lengths++] = context = lengthen(context, drafted.tokens[node]);
    }
    for (int64_t at = drafted.count; at > 0 && lengths < order;) {
        names_[lengths++] = context = lengthen(context, drafted.text[--at]);
    }
    return lengths;
}

}  // namespace paceline
