// Threads that share loops. A step is hundreds of loops of some microseconds each, and waking a
// thread takes longer than most of them: so threads watch for work while a program runs, and a
// while behind it. Where cores have no cache in common, what one has written reaches another in the
// time of hundreds of instructions: so a loop is a line or two for each thread, and one number back.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <type_traits>

#include "threads/readahead.hpp"

namespace paceline {

class Pool {
   public:
    static constexpr int kMost = 256;           // threads
    static constexpr size_t kBody = 240;        // bytes of a loop's body
    static constexpr int64_t kParts = 1 << 20;  // a shared loop has fewer

    // The one of this process.
    static Pool& shared();

    // The right to use the pool with so many threads, the caller's included, until it is destroyed,
    // for a program with such a trace.
    class Turn {
       public:
        Turn(int threads, const std::shared_ptr<AccessTrace>& trace);
        ~Turn();

       private:
        std::unique_lock<std::mutex> alone_;
    };

    // Nothing of a trace is read ahead any more.
    void forget(const std::shared_ptr<AccessTrace>& trace);

    // What is run while the caller does other things. It takes a turn of its own.
    struct Task {
        std::function<void()> run;  // throws nothing
        bool posted = false;
        int process = 0;
        std::atomic<bool> done{true};
    };

    // Lets another thread run it, if there are so many threads and no other task is waiting.
    void begin(Task& task, int threads);

    // Returns when it was run, by the caller if nobody else came to it; helps until then.
    void finish(Task& task);

    // Threads of the turn that is on.
    int threads() const { return active_.load(std::memory_order_relaxed); }

    // Calls `body` for 0 to `count` - 1, each once, in any order and on any thread. Threads have
    // copies of it: what it holds by value is at hand, what it refers to must be fetched.
    template <class Body>
    void each(int64_t count, const Body& body) {
        static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= kBody);
        const auto call = [](const void* of, int64_t i) { (*static_cast<const Body*>(of))(i); };
        run(count, call, &body, sizeof body);
    }

   private:
    using Run = void (*)(const void*, int64_t);

    Pool() = default;
    void run(int64_t count, Run run, const void* body, size_t size);
    int64_t finished() const;
    bool help(int index);
    void work(int index);
    bool attend(int index);
    void wake();
    void sleep();
    void start(int threads);
    void forked();

    // A thread's share of a loop. `left` says which loop, where the share ends, and what of it was
    // taken: one number, so that who takes a part knows what it is a part of. Shares are runs, since
    // memory is read fastest in order; who is through with its own goes on with the others'.
    struct alignas(128) Share {
        std::atomic<uint64_t> left{0};
        Run run = nullptr;
        alignas(16) unsigned char body[kBody];
        alignas(128) std::atomic<int64_t> finished{0};  // parts that the thread ever finished
    };
    Share shares_[kMost];
    alignas(128) std::atomic<bool> busy_{false};
    std::atomic<int> active_{1}, sleepers_{0};
    alignas(128) uint64_t loop_ = 0;
    int64_t wanted_ = 0;  // of `finished`

    ReadAhead readahead_;
    std::atomic<Task*> task_{nullptr};
    std::mutex turns_, sleeping_;
    std::condition_variable wake_;
    int started_ = 1;
    int process_ = 0;  // forks since the first
};

// Calls `body` for 0 to `count` - 1, on all threads of the turn if `parallel`.
template <class Body>
void each(int64_t count, bool parallel, const Body& body) {
    if (parallel && count > 1 && count < Pool::kParts) {
        Pool::shared().each(count, body);
    } else {
        for (int64_t i = 0; i < count; ++i) body(i);
    }
}

}  // namespace paceline
