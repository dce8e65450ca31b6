// Thread pool for loops of microseconds: threads spin while a program runs and for a short time
// after, since waking takes longer. Cores without a shared cache exchange a line or two per loop
// and thread.

#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <type_traits>

namespace paceline {

// Rounding to nearest, and small numbers as they are, while it lives: other libraries may have set
// the processor otherwise.
class Rounding {
   public:
#if defined(__x86_64__)
    Rounding() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
    ~Rounding() { _mm_setcsr(before_); }

   private:
    unsigned before_;
#elif defined(__aarch64__)
    Rounding() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
    }
    ~Rounding() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

   private:
    uint64_t before_;
#else
    Rounding() {}
#endif
};

class Pool {
   public:
    static constexpr int kMost = 256;           // threads
    static constexpr size_t kBody = 240;        // bytes of a loop's body
    static constexpr int64_t kParts = 1 << 20;  // a shared loop has fewer

    // The one of this process.
    static Pool& shared();

    // Exclusive use of the pool with so many threads, the caller's included.
    class Turn {
       public:
        explicit Turn(int threads);
        ~Turn();

       private:
        std::unique_lock<std::mutex> alone_;
        Rounding rounding_;
    };

    // Threads of the turn that is on.
    int threads() const { return active_.load(std::memory_order_relaxed); }

    // Calls `body` for 0 to `count` - 1 in any order. It is copied to the threads: capture small
    // values by value.
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
    void wake();
    void sleep();
    void start(int threads);
    void forked();

    // A thread's share of a loop. `left` packs loop number, end and progress into one atomic.
    // A thread that is done with its own share continues with those of others.
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

    std::mutex turns_, sleeping_;
    std::condition_variable wake_;
    int started_ = 1;
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
