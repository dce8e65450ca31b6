// Transitions of states with several followers: hash tables in one memory pool, and the most
// frequent tokens of each.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace paceline {

constexpr int kBest = 4;  // `BEST` of `drafters/suffix/automaton.py`

struct Transition {
    int32_t token, state;
};

// A table of 2^`bits` places, searched from the hash of a token on.
struct TransitionTable {
    int64_t at;  // in the pool
    int32_t used;
    int16_t bits, ranked;
    int32_t best[kBest];  // tokens, the first `ranked` of them: most frequent first
};

class Transitions {
   public:
    // Of two transitions, the first of them ranked.
    int32_t add(Transition first, Transition second) {
        const int32_t index = int32_t(transitions_.size());
        transitions_.push_back({take(1), 0, 1, 1, {first.token}});
        put(index, first);
        put(index, second);
        return index;
    }

    int32_t copy(int32_t index) {
        TransitionTable copy = transitions_[index];
        const int64_t from = copy.at;
        copy.at = take(copy.bits);
        std::copy_n(pool_.begin() + from, int64_t(1) << copy.bits, pool_.begin() + copy.at);
        transitions_.push_back(copy);
        return int32_t(transitions_.size()) - 1;
    }

    // The transition by a token, or null.
    Transition* find(int32_t index, int32_t token) {
        const TransitionTable& table = transitions_[index];
        Transition* place = search(table, token);
        return place && place->token == token ? place : nullptr;
    }

    // Adds a transition by a token that has none yet.
    void put(int32_t index, Transition made) {
        TransitionTable& table = transitions_[index];
        const int32_t places = 1 << table.bits;
        if (table.used == places - places / 4) grow(table);
        *search(table, made.token) = made;
        ++table.used;
    }

    TransitionTable& operator[](int32_t index) { return transitions_[index]; }

   private:
    static constexpr int32_t kEmpty = -1;

    // Where a token is, or would go; null if it is not there and the table full.
    Transition* search(const TransitionTable& table, int32_t token) {
        Transition* slots = pool_.data() + table.at;
        const uint32_t last = (1u << table.bits) - 1;
        uint32_t at = (uint32_t(token) * 2654435769u) >> (32 - table.bits);
        for (uint32_t probe = 0; probe <= last; ++probe, at = (at + 1) & last) {
            if (slots[at].token == token || slots[at].token == kEmpty) return slots + at;
        }
        return nullptr;
    }

    void grow(TransitionTable& table) {
        const TransitionTable old = table;
        table.at = take(++table.bits);
        for (int64_t i = old.at; i < old.at + (int64_t(1) << old.bits); ++i) {
            if (pool_[i].token != kEmpty) *search(table, pool_[i].token) = pool_[i];
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

    std::vector<TransitionTable> transitions_;
    std::vector<Transition> pool_;
    std::vector<int64_t> free_[32];  // tables that were outgrown, by bits
};

}  // namespace paceline
