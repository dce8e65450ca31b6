#include "drafting/automaton.hpp"

#include <algorithm>

namespace paceline {

namespace {

constexpr int32_t kRoot = 0, kNone = -1, kSeveral = -2;

}  // namespace

Automaton::Automaton(int32_t depth) : depth_(depth), place_(-1), fresh_(false) {
    add({0, -1, 0, -1, kNone, -1});
    begin();
}

void Automaton::begin() {
    last_ = kRoot;
    window_ = {kRoot, 0};
    match = {kRoot, 0, 0};
    if (!fresh_) ++place_;
    fresh_ = true;
}

void Automaton::extend(const int32_t* tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) append(tokens[i]);
}

int32_t Automaton::step(int32_t state, int32_t token) {
    const State& at = states_[state];
    if (at.token == token) return at.next;
    if (at.token != kSeveral) return kRoot;
    const Transition* found = transitions_.find(at.next, token);
    return found ? found->state : kRoot;
}

Context Automaton::shorten(Context context) const {
    return cut({context.state, std::min(context.length, depth_)});
}

Context Automaton::follow(Context context, int32_t token) {
    int32_t after = step(context.state, token);
    while (context.state && !after) {
        context = back_off(context.state);
        after = step(context.state, token);
    }
    return after ? shorten({after, context.length + 1}) : Context{kRoot, 0};
}

int32_t* Automaton::followers(Context context, int32_t* out) {
    const State& at = states_[context.state];
    int32_t tokens = 0;
    const auto write = [&](int32_t token, int32_t state) {
        out[4 + 2 * tokens] = token;
        out[5 + 2 * tokens++] = count(state);
    };
    if (at.token == kSeveral) {
        const TransitionTable& table = transitions_[at.next];
        for (int i = 0; i < table.ranked; ++i) {
            write(table.best[i], transitions_.find(at.next, table.best[i])->state);
        }
    } else if (at.token != kNone) {
        write(at.token, at.next);
    } else {
        return out;
    }
    out[0] = context.length;
    out[1] = followed(context.state);
    out[2] = context.state;
    out[3] = tokens;
    return out + 4 + 2 * tokens;
}

Context Automaton::cut(Context context) const {
    int32_t state = context.state;
    while (state && context.length <= states_[states_[state].link].length) {
        state = states_[state].link;
    }
    return {state, context.length};
}

void Automaton::append(int32_t token) {
    ++place_;
    fresh_ = false;
    last_ = grow(token);
    const Context previous = cut(window_);
    // What may follow the longest context is one token longer than that.
    window_ = cut({step(previous.state, token), std::min(previous.length, depth_) + 1});

    // Every suffix of the text, longest first, occurred once more, and here.
    State* const states = states_.data();
    const auto occurred = [&](State& state) {
        ++state.count;
        state.end = place_;
        return state.link;
    };
    int32_t at = window_.state;
    while (at && (!states[at].count || states[states[at].link].length >= depth_)) {
        at = occurred(states[at]);
    }
    match = {at, std::min({window_.length, depth_, states[at].length}), states[at].end};
    while (at) at = occurred(states[at]);

    // And the token followed every suffix of the text before it.
    for (at = previous.state; at; at = states[at].link) {
        if (states[at].token != kSeveral) continue;
        TransitionTable& table = transitions_[states[at].next];
        if (table.best[0] != token) promote(table, states[at].next, token);
    }
}

// Makes all suffixes of the text with `token` substrings; the state of the longest.
int32_t Automaton::grow(int32_t token) {
    const int32_t last = last_, made = size();
    int32_t state = last, after = kRoot;
    for (; state >= 0; state = states_[state].link) {
        State& at = states_[state];
        if (at.token == token) {
            after = at.next;
            break;
        }
        if (at.token == kSeveral) {
            if (const Transition* found = transitions_.find(at.next, token)) {
                after = found->state;
                break;
            }
            transitions_.put(at.next, {token, made});
        } else if (at.token == kNone) {
            at.token = token;
            at.next = made;
        } else {
            at.next = transitions_.add({at.token, at.next}, {token, made});
            at.token = kSeveral;
        }
    }
    if (state != last) add({states_[last].length + 1, kRoot, 0, -1, kNone, -1});
    if (after) {  // and where state is last, an earlier text began like this one
        if (states_[after].length != states_[state].length + 1) after = split(state, token, after);
        if (state == last) return after;
        states_[made].link = after;
    }
    return made;
}

// Gives the substrings of `after` that are no longer than through `state` their own state: they are
// about to occur where the longer ones do not.
int32_t Automaton::split(int32_t state, int32_t token, int32_t after) {
    State shorter = states_[after];
    shorter.length = states_[state].length + 1;
    if (shorter.token == kSeveral) shorter.next = transitions_.copy(shorter.next);
    const int32_t made = add(shorter);
    states_[after].link = made;
    for (; state >= 0; state = states_[state].link) {
        State& at = states_[state];
        if (at.token == token) {
            if (at.next != after) break;
            at.next = made;
        } else {
            Transition* const found = transitions_.find(at.next, token);
            if (found->state != after) break;
            found->state = made;
        }
    }
    return made;
}

int32_t Automaton::add(State state) {
    states_.push_back(state);
    return size() - 1;
}

// Moves a token, which occurred once more, before all that are no more frequent. Counts only grow,
// one at a time, so a list of the best alone never misses one that belongs.
void Automaton::promote(TransitionTable& table, int32_t index, int32_t token) {
    const auto times = [&](int32_t of) { return count(transitions_.find(index, of)->state); };
    const int32_t now = times(token);
    int32_t* const best = table.best;
    int place = int(std::find(best, best + table.ranked, token) - best);
    if (place == table.ranked) {
        if (table.ranked < kBest) {
            ++table.ranked;
        } else if (now >= times(best[kBest - 1])) {
            place = kBest - 1;
        } else {
            return;
        }
    }
    for (; place && now >= times(best[place - 1]); --place) best[place] = best[place - 1];
    best[place] = token;
}

}  // namespace paceline
