// Readahead: idle threads load into the shared cache what the next program will read first. The
// next program is predicted to be the one that followed last time, with the same accesses.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace paceline {

// Memory that a program reads.
struct Span {
    const char* at;
    int64_t bytes;
};

using Spans = std::vector<Span>;

// What runs of a program read first, in order.
class AccessTrace {
   public:
    void begin();
    void note(const void* at, int64_t bytes);
    void end();

    // Of the last run; null before there was one.
    std::shared_ptr<const Spans> spans() const { return spans_; }

    std::weak_ptr<AccessTrace> next;  // of the program that followed

   private:
    bool noted(const char* at) const;

    Spans noting_;
    int64_t total_ = 0;
    std::shared_ptr<const Spans> spans_;
};

// Readahead work of idle threads. All methods but `read` are called by one thread at a time.
class ReadAhead {
   public:
    // A program begins to run, and ends: until the next one begins, what that reads is read.
    void begin(const std::shared_ptr<AccessTrace>& trace);
    void end();

    // Nothing of this trace is read any more once this returns.
    void forget(const std::shared_ptr<AccessTrace>& trace);

    // There is something better to do.
    void stop() { want(nullptr); }

    // After a fork: no reader is left.
    void forked();

    // Changes whenever there is something else to read.
    uint64_t version() const { return version_; }

    // Reads the share of one of so many readers, unless `stop` turns true.
    void read(int reader, int readers, const std::atomic<bool>& stop);

   private:
    void want(std::shared_ptr<const Spans> spans);

    std::shared_ptr<AccessTrace> last_;
    std::mutex guard_;  // of what is wanted
    std::shared_ptr<const Spans> wanted_;
    std::atomic<uint64_t> version_{0};
    std::atomic<int> reading_{0};
};

}  // namespace paceline
