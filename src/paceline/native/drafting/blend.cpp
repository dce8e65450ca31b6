#include "drafting/blend.hpp"

#include <algorithm>

namespace paceline {
namespace {

constexpr int32_t kAbsent = -2;

int32_t child(const Source& source, int32_t node, int32_t token) {
    if (node == kAbsent) return kAbsent;
    for (int32_t i = source.nodes - 1; i > node; --i) {
        if (source.parents[i] == node && source.tokens[i] == token) return i;
    }
    return kAbsent;
}

}  // namespace

void Blend::grow(const std::vector<Source>& sources, int32_t nodes, int32_t depth, int32_t levels,
                 const double* rates) {
    count_ = sources.size();
    places_.assign(count_, kRoot);
    expansion.grow(nodes, depth, [&](int32_t node, double) {
        locate(sources, node);
        found_.clear();
        for (size_t s = 0; s < count_; ++s) {
            const Source& source = sources[s];
            const int32_t place = places_[size_t(node + 1) * count_ + s];
            const double above = place < 0 ? 1.0 : source.scores[place];
            for (int32_t i = place + 1; place != kAbsent && i < source.nodes; ++i) {
                if (source.parents[i] != place) continue;
                const auto same = [&](const Found& each) { return each.token == source.tokens[i]; };
                auto at = std::find_if(found_.begin(), found_.end(), same);
                if (at == found_.end()) at = found_.insert(at, {source.tokens[i], 0, 1.0});
                at->miss *= 1 - (above ? source.scores[i] / above : 0.0);
                at->sources |= 1 << s;
            }
        }
        std::stable_sort(found_.begin(), found_.end(),
                         [](const Found& a, const Found& b) { return a.miss < b.miss; });
        double left = 1.0;
        for (const Found& each : found_) {
            const int32_t level = std::min(int32_t((1 - each.miss) * levels), levels - 1);
            const int32_t cell = each.sources * levels + level;
            const double chance = rounded_product(left, rates[cell]);
            expansion.offers.push_back({each.token, cell, chance});
            left -= chance;
        }
    });
    locate(sources, int32_t(expansion.tokens.size()) - 1);
}

int32_t Blend::first(int32_t node) const {
    const int32_t* const places = places_.data() + size_t(node + 1) * count_;
    return int32_t(std::find_if(places, places + count_, [](int32_t p) { return p != kAbsent; }) -
                   places);
}

// Finds the places of all nodes up to one.
void Blend::locate(const std::vector<Source>& sources, int32_t node) {
    for (int32_t next = int32_t(places_.size() / count_) - 1; next <= node; ++next) {
        const size_t above = size_t(expansion.parents[next] + 1) * count_;
        for (size_t s = 0; s < count_; ++s) {
            places_.push_back(child(sources[s], places_[above + s], expansion.tokens[next]));
        }
    }
}

}  // namespace paceline
