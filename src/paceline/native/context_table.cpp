#include "context_table.hpp"

#include <algorithm>

#include "best_first.hpp"

namespace paceline {
namespace {

constexpr int32_t kNone = -1;
constexpr double kPast = 1.0;  // `_PAST` of `drafters/context_table.py`

}  // namespace

const Law* ContextTable::look(Name context) const {
    const int32_t at = find(context);
    return at == kNone ? nullptr : &laws_[at];
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
    Law& law = laws_[at];
    const double past = std::min(law.weight, kPast), whole = past + weight;
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
    int32_t* const known = law.tokens + law.used;
    for (int32_t i = 0; i < count; ++i) {
        if (std::find(law.tokens, known, tokens[i]) == known) {
            put(tokens[i], rounded_product(weight, shares[i]) / whole);
        }
    }
    for (int32_t i = 0; i < law.used; ++i) {
        const int64_t again = std::find(tokens, tokens + count, law.tokens[i]) - tokens;
        const double more = again < count ? rounded_product(weight, shares[again]) : 0.0;
        put(law.tokens[i], (rounded_product(past, law.shares[i]) + more) / whole);
    }
    law.used = std::min(size, kWidth);
    std::copy_n(named, law.used, law.tokens);
    std::copy_n(mixed, law.used, law.shares);
    law.weight += weight;
}

int32_t ContextTable::find(Name context) const {
    if (heads_.empty()) return kNone;
    int32_t at = heads_[context & (heads_.size() - 1)];
    while (at != kNone && laws_[at].context != context) at = laws_[at].chained;
    return at;
}

// A law without tokens for a new context.
int32_t ContextTable::take(Name context) {
    int32_t at = int32_t(laws_.size());
    if (at < capacity_) {
        laws_.push_back({});
        if (laws_.size() > heads_.size()) grow_index();
    } else {
        at = oldest_;
        leave(at);
        int32_t* link = &heads_[laws_[at].context & (heads_.size() - 1)];
        while (*link != at) link = &laws_[*link].chained;
        *link = laws_[at].chained;
    }
    laws_[at].context = context;
    laws_[at].weight = 0.0;
    laws_[at].used = 0;
    index(at);
    return at;
}

void ContextTable::index(int32_t at) {
    int32_t& head = heads_[laws_[at].context & (heads_.size() - 1)];
    laws_[at].chained = head;
    head = at;
}

// For all but the last law, which has no context yet.
void ContextTable::grow_index() {
    heads_.assign(std::max<size_t>(16, 2 * heads_.size()), kNone);
    for (int32_t at = 0; at + 1 < int32_t(laws_.size()); ++at) index(at);
}

void ContextTable::leave(int32_t at) {
    const int32_t older = laws_[at].older, newer = laws_[at].newer;
    (older == kNone ? oldest_ : laws_[older].newer) = newer;
    (newer == kNone ? newest_ : laws_[newer].older) = older;
}

void ContextTable::make_newest(int32_t at) {
    laws_[at].older = newest_;
    laws_[at].newer = kNone;
    (newest_ == kNone ? oldest_ : laws_[newest_].newer) = at;
    newest_ = at;
}

}  // namespace paceline
