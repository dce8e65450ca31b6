#include "drafting/context_table.hpp"

#include <algorithm>

#include "drafting/best_first.hpp"

namespace paceline {
namespace {

constexpr int32_t kNone = -1;
constexpr double kPast = 1.0;  // most weight that a context keeps of its past

}  // namespace

const Distribution* ContextTable::look(Name context) const {
    const int32_t at = find(context);
    return at == kNone ? nullptr : &distributions_[at];
}

void ContextTable::add(Name context, const int32_t* tokens, const double* shares, int32_t count,
                       double weight) {
    int32_t at = find(context);
    if (at == kNone) {
        at = take(context);
    } else {
        leave(at);
    }
    make_newest(at);
    Distribution& distribution = distributions_[at];
    const double past = std::min(distribution.weight, kPast), whole = past + weight;
    int32_t named[2 * kWidth], size = 0;
    double mixed[2 * kWidth];
    // Largest first, of equal ones the first to come.
    const auto put = [&](int32_t token, double share) {
        if (share <= 0) return;
        int32_t place = size++;
        for (; place > 0 && mixed[place - 1] < share; --place) {
            mixed[place] = mixed[place - 1];
            named[place] = named[place - 1];
        }
        mixed[place] = share;
        named[place] = token;
    };
    int32_t* const known = distribution.tokens + distribution.used;
    for (int32_t i = 0; i < count; ++i) {
        if (std::find(distribution.tokens, known, tokens[i]) == known) {
            put(tokens[i], rounded_product(weight, shares[i]) / whole);
        }
    }
    for (int32_t i = 0; i < distribution.used; ++i) {
        const int64_t again = std::find(tokens, tokens + count, distribution.tokens[i]) - tokens;
        const double more = again < count ? rounded_product(weight, shares[again]) : 0.0;
        put(distribution.tokens[i], (rounded_product(past, distribution.shares[i]) + more) / whole);
    }
    distribution.used = std::min(size, kWidth);
    std::copy_n(named, distribution.used, distribution.tokens);
    std::copy_n(mixed, distribution.used, distribution.shares);
    distribution.weight += weight;
}

int32_t ContextTable::find(Name context) const {
    if (heads_.empty()) return kNone;
    int32_t at = heads_[context & (heads_.size() - 1)];
    while (at != kNone && distributions_[at].context != context) at = distributions_[at].chained;
    return at;
}

// A distribution without tokens for a new context.
int32_t ContextTable::take(Name context) {
    int32_t at = int32_t(distributions_.size());
    if (at < capacity_) {
        distributions_.push_back({});
        if (distributions_.size() > heads_.size()) grow_index();
    } else {
        at = oldest_;
        leave(at);
        int32_t* link = &heads_[distributions_[at].context & (heads_.size() - 1)];
        while (*link != at) link = &distributions_[*link].chained;
        *link = distributions_[at].chained;
    }
    distributions_[at].context = context;
    distributions_[at].weight = 0.0;
    distributions_[at].used = 0;
    index(at);
    return at;
}

void ContextTable::index(int32_t at) {
    int32_t& head = heads_[distributions_[at].context & (heads_.size() - 1)];
    distributions_[at].chained = head;
    head = at;
}

// For all but the last distribution, which has no context yet.
void ContextTable::grow_index() {
    heads_.assign(std::max<size_t>(16, 2 * heads_.size()), kNone);
    for (int32_t at = 0; at + 1 < int32_t(distributions_.size()); ++at) index(at);
}

void ContextTable::leave(int32_t at) {
    const int32_t older = distributions_[at].older, newer = distributions_[at].newer;
    (older == kNone ? oldest_ : distributions_[older].newer) = newer;
    (newer == kNone ? newest_ : distributions_[newer].older) = older;
}

void ContextTable::make_newest(int32_t at) {
    distributions_[at].older = newest_;
    distributions_[at].newer = kNone;
    (newest_ == kNone ? oldest_ : distributions_[newest_].newer) = at;
    newest_ = at;
}

}  // namespace paceline
