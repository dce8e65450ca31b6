#include "threads/program.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace paceline {

Program::~Program() {
    if (!task_.done) Pool::shared().finish(task_);
}

int32_t Program::buffer(int32_t count, int64_t width, bool quantized) {
    buffers_.push_back({count, width, 0, quantized, nullptr, {}});
    return int32_t(buffers_.size()) - 1;
}

float* Program::at(View view) const {
    const Buffer& buffer = buffers_[view.buffer];
    if (buffer.quantized) throw std::invalid_argument("quantized rows are whole, for matmuls alone");
    return buffer.numbers.get() + view.column;
}

void Program::run(int64_t operations, int threads, const Call& call, double* seconds) {
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
    for (ran_ = 0; ran_ < operations && !stopped_; ++ran_) {
        const auto begin = seconds ? Clock::now() : Clock::time_point();
        operations_[ran_](call);
        if (seconds) seconds[ran_] += std::chrono::duration<double>(Clock::now() - begin).count();
    }
}

void Program::begin(int64_t operations, int threads, const Call& call) {
    if (!task_.done) Pool::shared().finish(task_);
    thrown_ = nullptr;
    task_.run = [=] {
        try {
            run(operations, threads, call, nullptr);
        } catch (...) {
            thrown_ = std::current_exception();
        }
    };
    Pool::shared().begin(task_, threads);
}

void Program::finish() {
    if (!task_.done) Pool::shared().finish(task_);
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

}  // namespace paceline
