// Hints for a chain from another drafter: what `drafters/hints.py` explains.

#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "drafting.hpp"

namespace paceline {

// What the other drafter has for a place of the chain: a token, -1 where it has none, or -2 if no hints
// are to be heeded at all; and the chance that it stands behind those before it.
struct Hint {
    int32_t token;
    float chance;
};

// Kinds of chances, all from `networks/hints.py`; hints are also of a kind of their own if there is none.
constexpr float kOwnEdges[] = {0.1f, 0.2f, 0.3f, 0.45f, 0.6f, 0.8f};
constexpr float kHintEdges[] = {0.15f, 0.35f, 0.6f, 0.85f};
constexpr int32_t kHintKinds = std::size(kHintEdges) + 2;
constexpr int32_t kCells = (std::size(kOwnEdges) + 1) * kHintKinds;

// What a chain heeded at a place.
struct Heeded {
    int32_t own;   // the network's token
    int32_t cell;  // of both chances; -1 if no hints are heeded
};

template <int kEdges>
int32_t kind_of(const float (&edges)[kEdges], float chance) {
    return int32_t(std::upper_bound(edges, edges + kEdges, chance) - edges);
}

// Takes the hint in the place of what was picked if it is likelier to stand. `rates` say how likely the
// token stands that both name, the network's of two, and the hint's of two: [3, kCells].
inline Heeded heed(Likeliest& picked, const Hint& hint, const double* rates) {
    if (hint.token < -1) return {picked.index, -1};
    const int32_t hinted = hint.token < 0 ? 0 : 1 + kind_of(kHintEdges, hint.chance);
    const int32_t cell = kind_of(kOwnEdges, picked.chance) * kHintKinds + hinted;
    const Heeded out{picked.index, cell};
    const double own = rates[kCells + cell], theirs = rates[2 * kCells + cell];
    if (hint.token == picked.index) {
        picked.chance = float(rates[cell]);
    } else if (hint.token < 0 || own >= theirs) {
        picked.chance = float(own);
    } else {
        picked = {hint.token, float(theirs)};
    }
    return out;
}

}  // namespace paceline
