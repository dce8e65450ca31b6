// Reading ahead. Between two programs threads wait, and so does memory. Meanwhile they read what the
// next program is going to read first, and it finds that in the cache that cores share. The next
// program is taken to be the one that followed the last time, and to read what it read then.

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

// What threads read that have nothing else to do. One thread at a time calls all but `read`.
class ReadAhead {
   public:
    // A program begins to run, and ends: until the next one begins, what that reads is read.
    void begin(const std::shared_ptr<AccessTrace>& trace);
    void end();

    // Nothing of this trace is read any more once this returns.
    void forget(const std::shared_ptr<AccessTrace>& trace);

    // There is something better to do.
    void stop() { want(nullptr); }

    // In a process that was forked off: nobody who read before is there.
    void forked();

    // Tells what is to be read from what was to be read before.
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
