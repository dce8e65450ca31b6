// Best-first tree expansion: `CandidateTree` of `trees/candidates.py`, node by node.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace paceline {

constexpr int32_t kRoot = -1;

// a * b, rounded: compilers would use a fused multiply-add, and Python rounds both.
inline double rounded_product(double a, double b) {
    volatile double rounded = a * b;
    return rounded;
}

// A possible next token: the probability that it comes next, and the cell of the hit rate that this
// rests on.
struct Offer {
    int32_t token, cell;
    double chance;
};

// A draft, with the offers under the root and under each node.
struct TreeExpansion {
    std::vector<int32_t> tokens, parents;
    std::vector<double> scores;
    std::vector<int32_t> begins;  // of the offers under the root, each node, and the end
    std::vector<Offer> offers;

    // Calls `offer` with a node and its path probability; it appends candidates to `offers`.
    template <class Some>
    void grow(int32_t nodes, int32_t depth, Some&& offer) {
        tokens.clear(), parents.clear(), scores.clear(), begins.clear(), offers.clear();
        heap_.clear();
        serial_ = 0;
        begins.push_back(0);
        if (nodes > 0 && depth > 0) expand(kRoot, 1.0, 1, offer);
        while (!heap_.empty() && int32_t(tokens.size()) < nodes) {
            std::pop_heap(heap_.begin(), heap_.end());
            const Waiting next = heap_.back();
            heap_.pop_back();
            const int32_t node = int32_t(tokens.size());
            tokens.push_back(next.token);
            parents.push_back(next.parent);
            scores.push_back(next.score);
            begins.push_back(int32_t(offers.size()));
            if (next.depth < depth && node + 1 < nodes) expand(node, next.score, next.depth + 1, offer);
        }
        begins.push_back(int32_t(offers.size()));
    }

    // Tokens, parents and begins, then pairs of offered tokens and cells; and scores. How many
    // nodes there are.
    int32_t write(int64_t* numbers, double* chances) const {
        numbers = std::copy(tokens.begin(), tokens.end(), numbers);
        numbers = std::copy(parents.begin(), parents.end(), numbers);
        numbers = std::copy(begins.begin(), begins.end(), numbers);
        write_pairs(numbers);
        std::copy(scores.begin(), scores.end(), chances);
        return int32_t(tokens.size());
    }

    // Pairs of offered tokens and cells, and chances. How many offers there are.
    int32_t write_offers(int64_t* numbers, double* chances) const {
        write_pairs(numbers);
        for (const Offer& each : offers) *chances++ = each.chance;
        return int32_t(offers.size());
    }

   private:
    void write_pairs(int64_t* numbers) const {
        for (const Offer& each : offers) {
            *numbers++ = each.token;
            *numbers++ = each.cell;
        }
    }

    struct Waiting {
        double score;
        int32_t serial, parent, token, depth;
        bool operator<(const Waiting& other) const {  // equal scores: the elder first
            return score < other.score || (score == other.score && serial > other.serial);
        }
    };

    template <class Some>
    void expand(int32_t node, double reach, int32_t depth, Some&& offer) {
        const size_t before = offers.size();
        offer(node, reach);
        for (size_t i = before; i < offers.size(); ++i) {
            heap_.push_back({reach * offers[i].chance, serial_++, node, offers[i].token, depth});
            std::push_heap(heap_.begin(), heap_.end());
        }
    }

    std::vector<Waiting> heap_;
    int32_t serial_ = 0;
};

}  // namespace paceline
