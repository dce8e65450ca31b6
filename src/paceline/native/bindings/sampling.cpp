// C interface of sampling and ranking.

#include <algorithm>
#include <vector>

#include "sampling/top_k.hpp"
#include "threads/program.hpp"
#include "sampling/gumbel_race.hpp"

using namespace paceline;

constexpr int64_t kNumbers = sizeof(Peak) / sizeof(float);

extern "C" {

int64_t paceline_winner(const float* logits, int64_t size, const Choice* choice,
                        const NoiseKey* key) {
    return gumbel_argmax(logits, size, *choice, *key);
}

// Likewise, of logits that penalties or biases have made float64.
int64_t paceline_winner_wide(const double* logits, int64_t size, const Choice* choice,
                             const NoiseKey* key) {
    return gumbel_argmax(logits, size, *choice, *key);
}

// Width of an output row of `paceline_argmax`.
int64_t paceline_peaks() { return kPieces * kNumbers; }

// Into the first column of `to`, for as many rows as it has, the bits of the place of each row's
// largest logit; -1 if one is infinite or no number.
void paceline_argmax(Program* program, View logits, int64_t width, View to) {
    program->add([=](const Call& call) {
        const int64_t rows = program->count(to, call);
        if (rows == 0) return;
        const Rows<float> out = program->rows(to);
        const Rows<Peak> peaks{reinterpret_cast<Peak*>(out.at), out.stride / kNumbers};
        find_peaks(program->read(logits), rows, width, peaks);
    });
}

// Of each row the `best` largest logits, see `rank_top_k`. How many rows were ranked: it ends
// before one with too many that are no numbers.
int64_t paceline_best(const float* logits, int64_t rows, int64_t width, int64_t best, int64_t* ids,
                      float* values) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = logits + r * width;
        if (!rank_top_k(row, width, best, ids + r * best, values + r * best)) return r;
    }
    return rows;
}

// Ranks likewise into a table with `stride` places per token: of each row the token that it belongs
// to gets the tokens of the largest logits. The last row of a token counts.
void paceline_rank_into(const float* logits, int64_t rows, int64_t width, int64_t best,
                      int64_t stride, const int32_t* tokens, int32_t* table) {
    thread_local std::vector<int64_t> places;
    thread_local std::vector<float> values;
    places.resize(best), values.resize(best);
    for (int64_t r = 0; r < rows; ++r) {
        if (!rank_top_k(logits + r * width, width, best, places.data(), values.data())) continue;
        std::copy(places.begin(), places.end(), table + tokens[r] * stride);
    }
}

}
