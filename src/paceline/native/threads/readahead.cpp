#include "threads/readahead.hpp"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

namespace paceline {
namespace {

constexpr int64_t kMostBytes = 16 << 20;  // more is not read in so short a while
constexpr size_t kMostSpans = 128;
constexpr int64_t kLine = 64;     // bytes that the processor fetches together
constexpr int64_t kPiece = 4096;  // bytes that a reader takes at a time

}  // namespace

void AccessTrace::begin() {
    noting_.clear();
    total_ = 0;
}

void AccessTrace::note(const void* from, int64_t bytes) {
    const char* at = static_cast<const char*>(from);
    if (total_ >= kMostBytes || noting_.size() == kMostSpans || noted(at)) return;
    if (!noting_.empty() && noting_.back().at + noting_.back().bytes == at) {
        noting_.back().bytes += bytes;
    } else {
        noting_.push_back({at, bytes});
    }
    total_ += bytes;
}

// Whether the run has read it before, and so has it at hand.
bool AccessTrace::noted(const char* at) const {
    return std::any_of(noting_.begin(), noting_.end(), [=](const Span& span) {
        return span.at <= at && at < span.at + span.bytes;
    });
}

void AccessTrace::end() { spans_ = std::make_shared<const Spans>(noting_); }

void ReadAhead::begin(const std::shared_ptr<AccessTrace>& trace) {
    if (last_) last_->next = trace;
    last_ = trace;
}

void ReadAhead::end() {
    const std::shared_ptr<AccessTrace> next = last_->next.lock();
    want(next ? next->spans() : nullptr);
}

void ReadAhead::forget(const std::shared_ptr<AccessTrace>& trace) {
    if (last_ == trace) last_.reset();
    want(nullptr);
    while (reading_ > 0) std::this_thread::yield();
}

void ReadAhead::forked() {
    new (&guard_) std::mutex;  // a thread that is gone may have held it
    last_.reset();
    want(nullptr);
    reading_ = 0;
}

void ReadAhead::want(std::shared_ptr<const Spans> spans) {
    const std::lock_guard<std::mutex> alone(guard_);
    wanted_ = std::move(spans);
    ++version_;
}

void ReadAhead::read(int reader, int readers, const std::atomic<bool>& stop) {
    ++reading_;  // before it asks for what: `forget` takes that away first, then waits
    uint64_t version;
    std::shared_ptr<const Spans> spans;
    {
        const std::lock_guard<std::mutex> alone(guard_);
        version = version_;
        spans = wanted_;
    }
    for (size_t s = 0; spans && s < spans->size(); ++s) {
        const auto [at, bytes] = (*spans)[s];
        for (int64_t begin = reader * kPiece; begin < bytes; begin += readers * kPiece) {
            if (stop || version_ != version) {
                --reading_;
                return;
            }
            // Loads, not prefetches: the processor drops prefetches when there are many.
            for (int64_t i = begin; i < std::min(begin + kPiece, bytes); i += kLine) {
                static_cast<void>(*static_cast<const volatile char*>(at + i));
            }
        }
    }
    --reading_;
}

}  // namespace paceline
