// Union of the drafts of several sources. Its reference is in `tests/drafters/test_suffix_twins.py`.

#pragma once

#include <cstdint>
#include <vector>

#include "drafting/best_first.hpp"

namespace paceline {

struct Source {
    int32_t nodes;
    const int32_t *tokens, *parents;
    const double* scores;
};

class Blend {
   public:
    // Grows the most probable nodes of the union; hit rates are by source set and confidence level.
    void grow(const std::vector<Source>& sources, int32_t nodes, int32_t depth, int32_t levels,
              const double* rates);

    // The first source that has a node.
    int32_t first(int32_t node) const;

    TreeExpansion expansion;

   private:
    struct Found {
        int32_t token, sources;
        double miss;
    };

    void locate(const std::vector<Source>& sources, int32_t node);

    std::vector<int32_t> places_;  // of the root and each node, in each source
    std::vector<Found> found_;
    size_t count_ = 0;
};

}  // namespace paceline
