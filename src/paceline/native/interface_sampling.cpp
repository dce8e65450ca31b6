// What Python calls to sample.

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

}
