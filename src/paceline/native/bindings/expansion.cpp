// C interface of tree expansion from automata and from other drafts. All return the number of nodes
// written, see `TreeExpansion::write`, and -1 without memory.

#include <exception>

#include "drafting/blend.hpp"
#include "drafting/suffixes.hpp"

using namespace paceline;

extern "C" {

// Contexts are those of the own text, then of others: state and length of each.
int32_t paceline_grow_suffixes(Automaton* own, Automaton* other, const Context* at, int32_t nodes,
                               int32_t depth, int32_t contexts, const double* rates,
                               int64_t* numbers, double* scores) {
    thread_local Suffixes suffixes;
    try {
        suffixes.grow({own, at[0]}, {other, at[1]}, nodes, depth, contexts, rates);
    } catch (const std::exception&) {
        return -1;
    }
    return suffixes.expansion.write(numbers, scores);
}

// The drafts are the number of nodes of each, then the tokens and parents of one after another; and
// the scores of all. Also written is the first source of each node.
int32_t paceline_grow_blend(int32_t count, const int32_t* drafts, const double* given,
                            int32_t nodes, int32_t depth, int32_t levels, const double* rates,
                            int64_t* numbers, double* scores, int32_t* sources) {
    thread_local Blend blend;
    try {
        std::vector<Source> parts;
        const int32_t* at = drafts + count;
        for (int32_t i = 0; i < count; at += 2 * drafts[i], given += drafts[i], ++i) {
            parts.push_back({drafts[i], at, at + drafts[i], given});
        }
        blend.grow(parts, nodes, depth, levels, rates);
    } catch (const std::exception&) {
        return -1;
    }
    const int32_t grown = blend.expansion.write(numbers, scores);
    for (int32_t node = 0; node < grown; ++node) sources[node] = blend.first(node);
    return grown;
}

}
