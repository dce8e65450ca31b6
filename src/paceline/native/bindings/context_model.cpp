// What Python calls of n-gram models of the target.

#include <exception>

#include "drafting/context_model.hpp"

using namespace paceline;

extern "C" {

// Null without memory for it.
ContextModel* paceline_context_new(int32_t order, int32_t capacity) {
    try {
        return new ContextModel(order, capacity);
    } catch (const std::exception&) {
        return nullptr;
    }
}

ContextModel* paceline_context_copy(const ContextModel* model) {
    try {
        return new ContextModel(*model);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void paceline_context_free(ContextModel* model) { delete model; }

// 0, or -1 without memory for all of it.
int32_t paceline_context_read(ContextModel* model, const int32_t* tokens, int64_t count,
                              int64_t begin, double weight) {
    try {
        model->read(tokens, count, begin, weight);
    } catch (const std::exception&) {
        return -1;
    }
    return 0;
}

// The numbers are those of the text, then tokens of the draft, then their parents. 0, or -1
// without memory for all of it.
int32_t paceline_context_recycle(ContextModel* model, const int32_t* numbers, int64_t count,
                                 int64_t nodes, const float* logits, int64_t width) {
    const int32_t* const tokens = numbers + count;
    try {
        model->recycle({numbers, count, tokens, tokens + nodes}, nodes, logits, width);
    } catch (const std::exception&) {
        return -1;
    }
    return 0;
}

// Most probable nodes after a text, see `TreeExpansion::write`. Returns their number; -1 without
// memory.
int32_t paceline_context_grow(ContextModel* model, const int32_t* text, int64_t count,
                              int32_t nodes, int32_t depth, const double* rates, int64_t* numbers,
                              double* scores) {
    try {
        model->grow(text, count, nodes, depth, rates);
    } catch (const std::exception&) {
        return -1;
    }
    return model->expansion.write(numbers, scores);
}

// What may follow a text: pairs of tokens and cells, and chances. How many; -1 without memory.
int32_t paceline_context_offers(ContextModel* model, const int32_t* text, int64_t count,
                                double reach, const double* rates, int64_t* numbers,
                                double* chances) {
    std::vector<Offer>& offers = model->expansion.offers;
    offers.clear();
    try {
        model->offer({text, count, nullptr, nullptr}, kRoot, reach, rates, offers);
    } catch (const std::exception&) {
        return -1;
    }
    return model->expansion.write_offers(numbers, chances);
}

// Tokens known to follow a whole text, their shares, then the weight. Returns how many; -1 if
// unknown.
int32_t paceline_context_look(ContextModel* model, const int32_t* text, int64_t count,
                              int32_t* tokens, double* shares) {
    const Distribution* distribution = model->look(text, count);
    if (!distribution) return -1;
    std::copy_n(distribution->tokens, distribution->used, tokens);
    *std::copy_n(distribution->shares, distribution->used, shares) = distribution->weight;
    return distribution->used;
}

}
