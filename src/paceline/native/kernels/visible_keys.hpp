// Visible keys of the rows of a pass, and groups of rows that share loads.

#pragma once

#include <cstdint>
#include <vector>

namespace paceline {

constexpr int kBlock = 32;       // tokens per block of the cache
constexpr int kChunk = 128;     // keys that are summed together, by place in the path
constexpr int kQueryRows = 48;  // query heads times rows that share loads of keys and values
constexpr int kRowFields = 6;    // int32 per row of `rows`, see Plan

// Rows and their visible keys: a run of the sequence's tokens from the first on, then single ones.
struct Plan {
    // [count, 6]: position; storage slot (block * 32 + row in it); begin of the block table in
    // `tables`; length of the run; begin of the single tokens in `singles`; keys that it sees. Rows
    // of a sequence are adjacent. Positions may repeat; what a row sees is what is named here.
    const int32_t* rows;
    int64_t count;
    const int32_t* tables;   // block ids
    const int32_t* singles;  // stored places of single tokens in their sequence
};

// A row of a plan.
struct Row {
    int32_t position, slot, table, run, singles, total;
};

inline Row row_of(const Plan& plan, int64_t r) {
    const int32_t* at = plan.rows + r * kRowFields;
    return {at[0], at[1], at[2], at[3], at[4], at[5]};
}

// Rows of one sequence that share loads.
struct Group {
    int first, count;  // rows
    int longest;       // path
    int longest_run, shortest_run;
    int single_blocks[2];  // of its sequence's table: the first that holds a single token, and the
                           // one behind the last; equal if there is none

    int chunks() const { return (longest + kChunk - 1) / kChunk; }
};

// What all layers of a pass share: found once.
struct VisibleKeys {
    Plan plan;
    std::vector<Group> groups;
    std::vector<Group> lasts;  // of the last row of each sequence alone
    int chunks;  // of the longest path
    std::vector<float> partial;  // room

    // `ratio`: query heads per kv head. Throws std::out_of_range for positions from `longest` on.
    void find(int ratio, const Plan& plan, int64_t longest);
};

}  // namespace paceline
