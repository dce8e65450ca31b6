// What Python calls to sample, and to rank logits.

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

}
