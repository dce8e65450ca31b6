#include "pool.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

namespace paceline {
namespace {

constexpr int kWatch = 4096;  // looks for work before a thread lets others run in between
constexpr int kSeldom = 64;   // looks between two at the clock
constexpr auto kAwake = std::chrono::milliseconds(1);  // behind a program, before it sleeps

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits a moment; others may run once it has waited long.
void wait(int& looks) {
    if (++looks < kWatch) {
        pause();
    } else {
        std::this_thread::yield();
    }
}

}  // namespace

Pool& Pool::shared() {
    static Pool* pool = new Pool;  // never destroyed: its threads may outlive static objects
    return *pool;
}

Pool::Turn::Turn(int threads) : alone_(shared().turns_) {
    Pool& pool = shared();
    threads = std::min(threads, kMost);
    pool.start(threads);
    pool.active_ = threads;
    pool.busy_ = true;
    if (pool.sleepers_ > 0) {
        std::lock_guard<std::mutex> lock(pool.sleeping_);
        pool.wake_.notify_all();
    }
}

Pool::Turn::~Turn() { shared().busy_ = false; }

void Pool::run(int64_t count, Run run, void* body) {
    run_ = run;
    body_ = body;
    finished_.store(0, std::memory_order_relaxed);
    const int64_t threads = this->threads();
    for (int64_t t = 0; t < threads; ++t) {
        const uint64_t begin = t * count / threads, end = (t + 1) * count / threads;
        shares_[t].left.store(end << 32 | begin, std::memory_order_release);
    }
    help(0);
    for (int looks = 0; finished_.load(std::memory_order_acquire) != count;) wait(looks);
}

// Takes parts while there are any.
bool Pool::help(int index) {
    const auto some = [](uint64_t left) { return uint32_t(left) < left >> 32; };
    bool helped = false;
    const int threads = this->threads();
    for (int t = 0; t < threads; ++t) {
        std::atomic<uint64_t>& left = shares_[(index + t) % threads].left;
        while (some(left.load(std::memory_order_relaxed))) {
            const uint64_t mine = left.fetch_add(1, std::memory_order_acq_rel);
            if (!some(mine)) break;
            run_(body_, uint32_t(mine));
            finished_.fetch_add(1, std::memory_order_release);
            helped = true;
        }
    }
    return helped;
}

void Pool::work(int index) {
    for (;;) {
        using Clock = std::chrono::steady_clock;
        auto until = Clock::now() + kAwake;
        for (int looks = 0;;) {
            if (index < threads() && help(index)) {
                looks = 0;
                until = Clock::now() + kAwake;
            } else if (busy_.load(std::memory_order_relaxed)) {
                wait(looks);
            } else {
                // Nothing but pauses: the other half of the core may be who makes the next work.
                for (int i = 0; i < 8; ++i) pause();
                if (++looks % kSeldom == 0 && Clock::now() > until) break;
            }
        }
        sleep();
    }
}

void Pool::sleep() {
    std::unique_lock<std::mutex> lock(sleeping_);
    ++sleepers_;
    wake_.wait(lock, [&] { return busy_.load(); });
    --sleepers_;
}

// Starts threads that are missing: all of them in a process that was forked off.
void Pool::start(int threads) {
    if (process_ != getpid()) {
        process_ = getpid();
        started_ = 1;
        new (&sleeping_) std::mutex;  // a thread that is gone may have held it
        new (&wake_) std::condition_variable;
        sleepers_ = 0;
    }
    // Signals are for the threads that know what to do with them.
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    for (; started_ < threads; ++started_) {
        std::thread([this, index = started_] { work(index); }).detach();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace paceline
