// What Python calls to sample, and to rank logits.

#include <algorithm>
#include <vector>

#include "best.hpp"
#include "race.hpp"

using namespace paceline;

extern "C" {

int64_t paceline_winner(const float* logits, int64_t size, const Choice* choice,
                        const NoiseKey* key) {
    return winner(logits, size, *choice, *key);
}

// Likewise, of logits that penalties or biases have made float64.
int64_t paceline_winner_wide(const double* logits, int64_t size, const Choice* choice,
                             const NoiseKey* key) {
    return winner(logits, size, *choice, *key);
}

// Of each row the `best` largest logits, see `rank_best`. How many rows were ranked: it ends before
// one with too many that are no numbers.
int64_t paceline_best(const float* logits, int64_t rows, int64_t width, int64_t best, int64_t* ids,
                      float* values) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = logits + r * width;
        if (!rank_best(row, width, best, ids + r * best, values + r * best)) return r;
    }
    return rows;
}

// Ranks likewise into a table with `stride` places per token: of each row the token that it belongs to
// gets the tokens of the largest logits. The last row of a token counts.
void paceline_rank_into(const float* logits, int64_t rows, int64_t width, int64_t best,
                      int64_t stride, const int32_t* tokens, int32_t* table) {
    thread_local std::vector<int64_t> places;
    thread_local std::vector<float> values;
    places.resize(best), values.resize(best);
    for (int64_t r = 0; r < rows; ++r) {
        if (!rank_best(logits + r * width, width, best, places.data(), values.data())) continue;
        std::copy(places.begin(), places.end(), table + tokens[r] * stride);
    }
}

}
