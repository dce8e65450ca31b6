// Drafts from two suffix automata: the blend of `methods/suffix_decoding.py`.

#pragma once

#include <cstdint>
#include <vector>

#include "drafting/automaton.hpp"
#include "drafting/best_first.hpp"

namespace paceline {

// A context in some texts.
struct Spot {
    Automaton* texts;
    Context at;
};

class Suffixes {
   public:
    // Expands the most probable nodes after one context in each automaton. `rates` are hit rates by
    // source, length kind and spread kind.
    void grow(const Spot& own, const Spot& other, int32_t nodes, int32_t depth, int32_t contexts,
              const double* rates);

    TreeExpansion expansion;

   private:
    struct Evidence {
        int32_t source, length, occurrences, count;
        int32_t followers[2 * kBest];
    };

    void look(int32_t source, const Spot& spot, int32_t contexts);
    void weigh(double reach, const double* rates);

    std::vector<Spot> spots_;  // in both texts, of the root and each node that was expanded
    std::vector<Evidence> evidence_;
};

}  // namespace paceline
