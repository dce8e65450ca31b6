// Threads that share loops. A step is hundreds of loops of some microseconds each, and waking a
// thread takes longer than most of them: so threads watch for work while a program runs, and a
// while behind it.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <type_traits>

namespace paceline {

class Pool {
   public:
    static constexpr int kMost = 256;  // threads

    // The one of this process.
    static Pool& shared();

    // The right to use the pool with so many threads, the caller's included, until it is destroyed.
    class Turn {
       public:
        explicit Turn(int threads);
        ~Turn();

       private:
        std::unique_lock<std::mutex> alone_;
    };

    // Threads of the turn that is on.
    int threads() const { return active_.load(std::memory_order_relaxed); }

    // Calls `body` for 0 to `count` - 1, each once, in any order and on any thread.
    template <class Body>
    void each(int64_t count, Body& body) {
        run(count, [](void* of, int64_t i) { (*static_cast<Body*>(of))(i); }, &body);
    }

   private:
    using Run = void (*)(void*, int64_t);

    Pool() = default;
    void run(int64_t count, Run run, void* body);
    bool help(int index);
    void work(int index);
    void sleep();
    void start(int threads);

    // A thread's share of a loop: where it ends (high half) and what of it was taken. One number, so
    // that who takes a part knows that the loop it belongs to is still on. Shares are runs, since
    // memory is read fastest in order; who is through with its own goes on with the others'.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};
    };
    Share shares_[kMost];
    alignas(64) std::atomic<int64_t> finished_{0};
    alignas(64) std::atomic<bool> busy_{false};
    std::atomic<int> active_{1}, sleepers_{0};
    Run run_ = nullptr;
    void* body_ = nullptr;

    std::mutex turns_, sleeping_;
    std::condition_variable wake_;
    int started_ = 1;
    int process_ = 0;
};

// Calls `body` for 0 to `count` - 1, on all threads of the turn if `parallel`.
template <class Body>
void each(int64_t count, bool parallel, Body&& body) {
    if (parallel && count > 1) {
        Pool::shared().each(count, body);
    } else {
        for (int64_t i = 0; i < count; ++i) body(i);
    }
}

}  // namespace paceline
