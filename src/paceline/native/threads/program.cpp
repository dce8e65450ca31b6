#include "threads/program.hpp"

#include <algorithm>
#include <stdexcept>

namespace paceline {

int32_t Program::buffer(int32_t count, int64_t width, bool quantized) {
    buffers_.push_back({count, width, 0, quantized, nullptr, {}});
    return int32_t(buffers_.size()) - 1;
}

float* Program::at(View view) const {
    const Buffer& buffer = buffers_[view.buffer];
    if (buffer.quantized) throw std::invalid_argument("quantized rows are whole, for matmuls alone");
    return buffer.numbers.get() + view.column;
}

void Program::run(int64_t begin, int64_t end, int threads, const Call& call, double* seconds) {
    for (Buffer& buffer : buffers_) {
        const int64_t wanted = call.counts[buffer.count];
        if (buffer.quantized) {
            buffer.groups.fit(wanted, buffer.width);
            continue;
        }
        if (wanted <= buffer.rows) continue;
        buffer.rows = 0;
        buffer.numbers.reset();  // before there is a larger one
        buffer.numbers.reset(new float[wanted * buffer.width]);
        buffer.rows = wanted;
    }
    const Pool::Turn turn(threads);
    using Clock = std::chrono::steady_clock;
    stopped_ = false;
    for (ran_ = begin; ran_ < end && !stopped_; ++ran_) {
        const auto since = seconds ? Clock::now() : Clock::time_point();
        operations_[ran_](call);
        if (seconds) seconds[ran_] += std::chrono::duration<double>(Clock::now() - since).count();
    }
}

}  // namespace paceline
