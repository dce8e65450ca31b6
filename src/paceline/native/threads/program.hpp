// Program: operations on row buffers, run in one call.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/experts.hpp"
#include "kernels/matmul.hpp"
#include "kernels/recurrence.hpp"

namespace paceline {

// Columns of a buffer, from `column` on.
struct View {
    int32_t buffer, column;
};

// What a run is given: numbers of rows, and arrays that operations read.
struct Call {
    const int64_t* counts;
    const int32_t* const* inputs;
};

class Program {
   public:
    using Operation = std::function<void(const Call&)>;

    // A buffer with `count` rows (an index of a call's counts); quantized if only matmuls read it.
    int32_t buffer(int32_t count, int64_t width, bool quantized);

    // What runs when the program comes to it.
    void add(Operation operation) { operations_.push_back(std::move(operation)); }

    Program() = default;
    Program(const Program&) = delete;

    // Ends the run after the current operation.
    void stop() { stopped_ = true; }

    // Operations of the last run.
    int64_t ran() const { return ran_; }

    // Runs the operations from `begin` to `end` on so many threads; adds to `seconds`, unless null,
    // what each took. Throws std::bad_alloc, and what operations throw.
    void run(int64_t begin, int64_t end, int threads, const Call& call, double* seconds);

    // These throw std::invalid_argument if the rows are quantized.
    Rows<float> rows(View view) { return {at(view), buffers_[view.buffer].width}; }
    Rows<const float> read(View view) {
        return view.buffer < 0 ? Rows<const float>{nullptr, 0}
                               : Rows<const float>{at(view), buffers_[view.buffer].width};
    }
    // Of either kind; quantized rows whole.
    Input input(View view) {
        QuantizedRows* quantized = groups(view);
        return quantized ? Input{{}, quantized} : Input{read(view), nullptr};
    }
    Output output(View view) {
        QuantizedRows* quantized = groups(view);
        return quantized ? Output{{}, quantized} : Output{rows(view), nullptr};
    }

    int64_t count(View view, const Call& call) const {
        return call.counts[buffers_[view.buffer].count];
    }

    Scratch scratch;
    VisibleKeys visible;
    Recurrences recurrences;

   private:
    struct Buffer {
        int32_t count;
        int64_t width, rows;
        bool quantized;
        std::unique_ptr<float[]> numbers;
        QuantizedRows groups;  // instead, if quantized
    };

    float* at(View view) const;
    QuantizedRows* groups(View view) {
        const bool whole = view.buffer >= 0 && view.column == 0;
        return whole && buffers_[view.buffer].quantized ? &buffers_[view.buffer].groups : nullptr;
    }

    std::vector<Buffer> buffers_;
    std::vector<Operation> operations_;
    int64_t ran_ = 0;
    bool stopped_ = false;
};

}  // namespace paceline
