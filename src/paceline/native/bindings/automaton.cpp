// C interface of suffix automata.

#include <exception>

#include "drafting/automaton.hpp"

using namespace paceline;

extern "C" {

// Null without memory for it.
Automaton* paceline_automaton_new(int32_t depth) {
    try {
        return new Automaton(depth);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void paceline_automaton_free(Automaton* automaton) { delete automaton; }

void paceline_automaton_begin(Automaton* automaton) { automaton->begin(); }

// Whether there was memory for all tokens; `match` is then the automaton's.
int32_t paceline_automaton_extend(Automaton* automaton, const int32_t* tokens, int64_t count,
                                  Match* match) {
    try {
        automaton->extend(tokens, count);
    } catch (const std::exception&) {
        return false;
    }
    *match = automaton->match;
    return true;
}

int32_t paceline_automaton_step(Automaton* automaton, int32_t state, int32_t token) {
    return automaton->step(state, token);
}

// Follows tokens from a context, shortened first.
void paceline_automaton_read(Automaton* automaton, int32_t state, int32_t length,
                             const int32_t* tokens, int64_t count, Match* match) {
    Context at = automaton->shorten({state, length});
    for (int64_t i = 0; i < count; ++i) at = automaton->follow(at, tokens[i]);
    *match = {at.state, at.length, automaton->end(at.state)};
}

void paceline_automaton_back_off(Automaton* automaton, int32_t state, Context* to) {
    *to = automaton->back_off(state);
}

// Writes the longest context after `token` (the one given if -1), then the followers of it and of
// shorter ones, up to `most` that have any. Returns how many numbers were written.
int32_t paceline_automaton_outlook(Automaton* automaton, int32_t state, int32_t length,
                                   int32_t token, int32_t most, int32_t* out) {
    Context at{state, length};
    if (token >= 0) at = automaton->follow(at, token);
    out[0] = at.state;
    out[1] = at.length;
    int32_t* end = out + 2;
    for (; at.state && most; at = automaton->back_off(at.state)) {
        int32_t* const before = end;
        end = automaton->followers(at, end);
        most -= end != before;
    }
    return int32_t(end - out);
}

// What followed one context. How many numbers were written.
int32_t paceline_automaton_followers(Automaton* automaton, int32_t state, int32_t* out) {
    return int32_t(automaton->followers({state, 0}, out) - out);
}

// How many of a state's occurrences something follows.
int32_t paceline_automaton_followed(Automaton* automaton, int32_t state) {
    return automaton->followed(state);
}

int32_t paceline_automaton_count(Automaton* automaton, int32_t state) {
    return automaton->count(state);
}

int32_t paceline_automaton_end(Automaton* automaton, int32_t state) {
    return automaton->end(state);
}

int32_t paceline_automaton_size(Automaton* automaton) { return automaton->size(); }

}
