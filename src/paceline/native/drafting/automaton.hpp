// Suffix automaton over token texts, with counts and last positions.
// Reference implementation: `drafters/suffix/automaton.py`.

#pragma once

#include <cstdint>
#include <vector>

#include "drafting/transitions.hpp"

namespace paceline {

// The last `length` tokens of something that occurs in the texts, and the state they belong to.
struct Context {
    int32_t state, length;
};

// A context with the place of the last token of its latest occurrence.
struct Match {
    int32_t state, length, end;
};

class Automaton {
   public:
    explicit Automaton(int32_t depth);

    void begin();
    void extend(const int32_t* tokens, int64_t count);

    int32_t step(int32_t state, int32_t token);
    Context shorten(Context context) const;
    Context follow(Context context, int32_t token);

    // Writes pairs: context length and followed occurrences; state and number of followers; then
    // each follower and its count. Returns the end; `out` itself if nothing ever followed.
    int32_t* followers(Context context, int32_t* out);

    // The longest shorter context that occurred more often.
    Context back_off(int32_t state) const {
        const int32_t link = states_[state].link;
        return {link, states_[link].length};
    }
    int32_t count(int32_t state) const { return states_[state].count; }
    int32_t end(int32_t state) const { return states_[state].end; }
    int32_t followed(int32_t state) const {
        return count(state) - (!fresh_ && end(state) == place_);
    }
    int32_t size() const { return int32_t(states_.size()); }

    Match match;

   private:
    struct State {
        int32_t length, link, count, end;
        int32_t token, next;  // the only transition, or `kSeveral` and the index of its branches
    };

    Context cut(Context context) const;
    void append(int32_t token);
    int32_t grow(int32_t token);
    int32_t split(int32_t state, int32_t token, int32_t after);
    int32_t add(State state);
    void promote(TransitionTable& table, int32_t index, int32_t token);

    int32_t depth_, last_, place_;
    bool fresh_;  // no token since the last break
    Context window_;
    std::vector<State> states_;
    Transitions transitions_;
};

}  // namespace paceline
