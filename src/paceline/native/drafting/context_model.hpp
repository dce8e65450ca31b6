// An n-gram model of the target: what `drafters/plain_context_model.py` is, and where it is explained.

#pragma once

#include <cstdint>
#include <vector>

#include "drafting/best_first.hpp"
#include "drafting/context_table.hpp"

namespace paceline {

// The end of a text, and a draft behind it.
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

    // From the target's distributions at the root and behind each node; `logits` is `[1 + nodes][width]`.
    void recycle(const Drafted& drafted, int64_t nodes, const float* logits, int64_t width);

    // Appends what may come at a node of a draft, or at the root, if decoding gets there with
    // probability `reach`. `rates` are hit rates by cell.
    void offer(const Drafted& drafted, int32_t node, double reach, const double* rates,
               std::vector<Offer>& offers);

    // The top_two nodes that may follow a text; kept in `expansion`.
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
