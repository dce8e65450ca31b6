// Averaged next-token distributions by context, with least recently written eviction.

#pragma once

#include <cstdint>
#include <vector>

namespace paceline {

constexpr int kWidth = 8;  // `WIDTH` there

// Hash of a context. Collisions share a distribution.
typedef uint64_t Name;

// The context with one more token before it; 0 names the empty one.
inline Name lengthen(Name name, int32_t token) {
    name += 0x9e3779b97f4a7c15u + uint64_t(uint32_t(token));
    name = (name ^ (name >> 30)) * 0xbf58476d1ce4e5b9u;
    name = (name ^ (name >> 27)) * 0x94d049bb133111ebu;
    return name ^ (name >> 31);
}

struct Distribution {
    Name context;
    double weight;
    int32_t used;
    int32_t chained;       // the next with the same place in the index
    int32_t older, newer;  // by when it was written
    int32_t tokens[kWidth];
    double shares[kWidth];
};

class ContextTable {
   public:
    explicit ContextTable(int32_t capacity) : capacity_(capacity) {}

    // Null if nothing is known.
    const Distribution* look(Name context) const;

    void add(Name context, const int32_t* tokens, const double* shares, int32_t count,
             double weight);

   private:
    int32_t find(Name context) const;
    int32_t take(Name context);
    void index(int32_t at);
    void grow_index();
    void leave(int32_t at);
    void make_newest(int32_t at);

    int32_t capacity_, oldest_ = -1, newest_ = -1;
    std::vector<Distribution> distributions_;
    std::vector<int32_t> heads_;  // 2^n places, by the last bits of names
};

}  // namespace paceline
