// Recurrences of ragged rows: short convolutions, gated delta rules and scans, states in float32.
//
// A state is changed by the rows of its sequence one after another, and each of its columns by the
// same operations in the same order: so a row's result is bit-identical however rows are cut into
// forwards. A node of a draft changes a copy; what it would change is its record.

#pragma once

#include <cstdint>
#include <vector>

#include "kernels/vectors.hpp"

namespace paceline {

constexpr int kMostTaps = 8;

// One sequence in a forward. Its steps are `lates` records, then `fresh` rows; nodes come after.
// Records and states are those of all layers.
struct Recurrence {
    const float* base;   // state before the steps; null for an empty text
    float* ahead;        // where the state behind the first `stored` steps goes, if any are
    const float* late;   // records
    int64_t lates, fresh, nodes, stored;
    int64_t row, node;   // the first of each in the forward
};

// Where an input of a convolution is: in a row, or else in a record or the tail of a state.
struct Past {
    const float* at;  // null before a text
    int32_t row;      // -1 for none
    int32_t tail;     // row of a tail; -1 for a record
};

// The sequences of a forward, and what each of their rows comes after.
class Recurrences {
   public:
    void set(const Recurrence* of, int64_t count, const int32_t* parents, int taps);

    const std::vector<Recurrence>& all() const { return all_; }
    int taps() const { return taps_; }
    // By row `taps` - 1 inputs, the oldest first; by sequence those behind the steps to be stored.
    const Past* before(int64_t row) const { return &before_[row * (taps_ - 1)]; }
    const Past* stored(int64_t sequence) const { return &stored_[sequence * (taps_ - 1)]; }
    int64_t node(int64_t row) const { return node_[row]; }  // -1 for none
    int32_t parent(int64_t node) const { return parents_[node]; }
    // Of a node's block: nodes that are the last child take that of their parent.
    int32_t place(int64_t node) const { return places_[node]; }
    int32_t most() const { return most_; }

   private:
    Past step(const Recurrence& of, int64_t step) const;

    std::vector<Recurrence> all_;
    std::vector<Past> before_, stored_;
    std::vector<int64_t> node_;
    std::vector<int32_t> places_;
    const int32_t* parents_ = nullptr;
    int taps_ = 0;
    int32_t most_ = 0;
};

// Offsets are of floats in a state; those of records are columns of the buffer `records`.
struct Convolution {
    int64_t width, tail;
    const float* weights;  // [taps, width]
    const float* bias;     // [width], where sums begin, or null
    int64_t activated;     // SiLU comes after
};

//   x:       [rows, width]
//   records: of this layer; rows of nodes are written
//   out:     [rows, width]
void convolve(const Convolution& of, const Recurrences& in, int64_t rows, Rows<const float> x,
              int64_t column, Rows<float> records, Rows<float> out);

struct StateHeads {
    int32_t key_heads, value_heads, key_width, value_width;  // of 4; of 16
    int32_t tiled, unused;
    int64_t sum;  // in a state, [value_heads, value_width / 16, key_width, 16]
    const float *rate, *dt, *skip;  // [value_heads]; a delta rule skips nothing
};

//   x:     [rows, 2 * keys + values]: queries, keys and values; the former get their lengths
//   gates: [rows, 2 * value_heads]; become strength and decay
//   out:   [rows, values]
void delta(const StateHeads& of, const Recurrences& in, int64_t rows, Rows<float> x,
           Rows<float> gates, int64_t column, Rows<float> records, Rows<float> out);

//   x:     [rows, values + 2 * keys]: values, keys and queries
//   gates: [rows, 2 * value_heads], steps twice; become step and decay
//   out:   [rows, values]
void scan(const StateHeads& of, const Recurrences& in, int64_t rows, Rows<float> x,
          Rows<float> gates, int64_t column, Rows<float> records, Rows<float> out);

}  // namespace paceline
