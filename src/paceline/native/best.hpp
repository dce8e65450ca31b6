// The largest numbers of a row.

#pragma once

#include <cstdint>
#include <vector>

namespace paceline {

// Places of the `best` largest of `count` numbers, of equal ones the first, in any order; all if there
// are no more.
void find_best(const float* numbers, int64_t count, int64_t best, std::vector<int32_t>& found);

// The same, the largest first, with the numbers. False if there are fewer that are numbers at all.
bool rank_best(const float* numbers, int64_t count, int64_t best, int64_t* places, float* values);

}  // namespace paceline
