// What follows the states of an automaton that several tokens follow: tables of transitions, in one
// pool of memory, and the most frequent tokens of each.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace paceline {

constexpr int kBest = 4;  // `BEST` of `drafters/automaton.py`

struct Transition {
    int32_t token, state;
};

// A table of 2^`bits` places, searched from the hash of a token on.
struct Branch {
    int64_t at;  // in the pool
    int32_t used;
    int16_t bits, ranked;
    int32_t best[kBest];  // tokens, the first `ranked` of them: most frequent first
};

class Branches {
   public:
    // Of two transitions, the first of them ranked.
    int32_t add(Transition first, Transition second) {
        const int32_t index = int32_t(branches_.size());
        branches_.push_back({take(1), 0, 1, 1, {first.token}});
        put(index, first);
        put(index, second);
        return index;
    }

    int32_t copy(int32_t index) {
        Branch twin = branches_[index];
        const int64_t from = twin.at;
        twin.at = take(twin.bits);
        std::copy_n(pool_.begin() + from, int64_t(1) << twin.bits, pool_.begin() + twin.at);
        branches_.push_back(twin);
        return int32_t(branches_.size()) - 1;
    }

    // The transition by a token, or null.
    Transition* find(int32_t index, int32_t token) {
        const Branch& branch = branches_[index];
        Transition* place = search(branch, token);
        return place && place->token == token ? place : nullptr;
    }

    // Adds a transition by a token that has none yet.
    void put(int32_t index, Transition made) {
        Branch& branch = branches_[index];
        const int32_t places = 1 << branch.bits;
        if (branch.used == places - places / 4) grow(branch);
        *search(branch, made.token) = made;
        ++branch.used;
    }

    Branch& operator[](int32_t index) { return branches_[index]; }

   private:
    static constexpr int32_t kEmpty = -1;

    // Where a token is, or would go; null if it is not there and the table full.
    Transition* search(const Branch& branch, int32_t token) {
        Transition* table = pool_.data() + branch.at;
        const uint32_t last = (1u << branch.bits) - 1;
        uint32_t at = (uint32_t(token) * 2654435769u) >> (32 - branch.bits);
        for (uint32_t probe = 0; probe <= last; ++probe, at = (at + 1) & last) {
            if (table[at].token == token || table[at].token == kEmpty) return table + at;
        }
        return nullptr;
    }

    void grow(Branch& branch) {
        const Branch old = branch;
        branch.at = take(++branch.bits);
        for (int64_t i = old.at; i < old.at + (int64_t(1) << old.bits); ++i) {
            if (pool_[i].token != kEmpty) *search(branch, pool_[i].token) = pool_[i];
        }
        free_[old.bits].push_back(old.at);
    }

    // An empty table.
    int64_t take(int bits) {
        const int64_t places = int64_t(1) << bits;
        if (free_[bits].empty()) {
            const int64_t at = int64_t(pool_.size());
            pool_.resize(at + places, {kEmpty, 0});
            return at;
        }
        const int64_t at = free_[bits].back();
        free_[bits].pop_back();
        std::fill_n(pool_.begin() + at, places, Transition{kEmpty, 0});
        return at;
    }

    std::vector<Branch> branches_;
    std::vector<Transition> pool_;
    std::vector<int64_t> free_[32];  // tables that were outgrown, by bits
};

}  // namespace paceline
