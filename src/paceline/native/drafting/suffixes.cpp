#include "drafting/suffixes.hpp"

#include <algorithm>
#include <iterator>

namespace paceline {
namespace {

// All from `drafters/candidates.py` and `trees/candidates.py`.
constexpr int32_t kEdges[] = {2, 3, 4, 5, 6, 8, 12, 20};
constexpr double kShares[] = {0.1, 0.25, 0.5};
constexpr int32_t kLengths = std::size(kEdges) + 1, kSpreads = 7;
constexpr double kFloor = 0.01;

int32_t length_kind(int32_t length) {
    return int32_t(std::upper_bound(std::begin(kEdges), std::end(kEdges), length) - kEdges);
}

int32_t spread_kind(int32_t times, int32_t occurrences) {
    if (times == occurrences) return std::min(times, 3) - 1;
    const double share = double(times) / occurrences;
    return 6 - int32_t(std::upper_bound(std::begin(kShares), std::end(kShares), share) - kShares);
}

}  // namespace

void Suffixes::grow(const Spot& own, const Spot& other, int32_t nodes, int32_t depth,
                    int32_t contexts, const double* rates) {
    spots_.assign({own, other});
    expansion.grow(nodes, depth, [&](int32_t node, double reach) {
        if (node != kRoot) {
            spots_.resize(2 * size_t(node + 2));
            const size_t above = 2 * size_t(expansion.parents[node] + 1), here = 2 * size_t(node + 1);
            const int32_t token = expansion.tokens[node];
            for (size_t s = 0; s < 2; ++s) {
                Spot spot = spots_[above + s];
                // Where the others no longer go along, only single tokens could be found in them.
                const bool gone = s == 1 && !spot.at.state;
                spot.at = gone ? Context{0, 0} : spot.texts->follow(spot.at, token);
                spots_[here + s] = spot;
            }
        }
        evidence_.clear();
        for (int32_t s = 0; s < 2; ++s) look(s, spots_[2 * size_t(node + 1) + s], contexts);
        std::stable_sort(evidence_.begin(), evidence_.end(),
                         [](const Evidence& a, const Evidence& b) { return a.length > b.length; });
        weigh(reach, rates);
    });
}

// Adds what followed a context and shorter ones in one of the texts, of the first so many.
void Suffixes::look(int32_t source, const Spot& spot, int32_t contexts) {
    int32_t found[4 + 2 * kBest];
    for (Context at = spot.at; at.state && contexts; at = spot.texts->back_off(at.state)) {
        if (spot.texts->followers(at, found) == found) continue;
        Evidence seen{source, found[0], found[1], found[3], {}};
        std::copy_n(found + 4, 2 * seen.count, seen.followers);
        evidence_.push_back(seen);
        --contexts;
    }
}

// Appends what they offer: `weigh` of `drafters/candidates.py`.
void Suffixes::weigh(double reach, const double* rates) {
    std::vector<Offer>& offers = expansion.offers;
    const size_t first = offers.size();
    double left = 1.0;
    for (const Evidence& seen : evidence_) {
        const int32_t row = (seen.source * kLengths + length_kind(seen.length)) * kSpreads;
        for (int32_t i = 0; i < seen.count; ++i) {
            const int32_t token = seen.followers[2 * i];
            const auto same = [&](const Offer& each) { return each.token == token; };
            if (std::any_of(offers.begin() + int64_t(first), offers.end(), same)) continue;
            const int32_t cell = row + spread_kind(seen.followers[2 * i + 1], seen.occurrences);
            const double chance = rounded_product(left, rates[cell]);
            if (chance * reach < kFloor) break;
            offers.push_back({token, cell, chance});
            left -= chance;
        }
        if (left * reach < kFloor) break;
    }
}

}  // namespace paceline
