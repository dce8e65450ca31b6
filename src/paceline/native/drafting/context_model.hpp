// N-gram model of the target. Reference implementation: `methods/statistics/context_model.py`.

#pragma once

#include <cstdint>
#include <vector>

#include "drafting/best_first.hpp"
#include "drafting/context_table.hpp"

namespace paceline {

// End of a text, and a draft after it.
struct Drafted {
    const int32_t* text;
    int64_t count;
    const int32_t *tokens, *parents;
};

class ContextModel {
   public:
    ContextModel(int32_t order, int32_t capacity) : names_(order), table_(capacity) {}

    // The tokens from position `begin` on came after those before them.
    void read(const int32_t* tokens, int64_t count, int64_t begin, double weight);

    // Learns target distributions at the root and after each node; `logits` is `[1 +
    // nodes][width]`.
    void recycle(const Drafted& drafted, int64_t nodes, const float* logits, int64_t width);

    // Appends candidates at a node, or at the root, that decoding reaches with probability `reach`.
    // `rates` are hit rates by cell.
    void offer(const Drafted& drafted, int32_t node, double reach, const double* rates,
               std::vector<Offer>& offers);

    // Expands the most probable nodes after a text, into `expansion`.
    void grow(const int32_t* text, int64_t count, int32_t nodes, int32_t depth,
              const double* rates);

    // What is known of a whole text as context; null if nothing.
    const Distribution* look(const int32_t* text, int64_t count);

    TreeExpansion expansion;

   private:
    int32_t name(const Drafted& drafted, int32_t node);

    std::vector<Name> names_;  // of contexts of 1 token and more that end at some node
    ContextTable table_;
};

}  // namespace paceline
