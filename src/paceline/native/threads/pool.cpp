#include "threads/pool.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

namespace paceline {
namespace {

constexpr int kWatch = 4096;  // looks for work before a thread lets others run in between
constexpr int kSeldom = 64;   // looks between two at the clock
constexpr auto kAwake = std::chrono::milliseconds(1);  // behind a program, before it sleeps

thread_local int self = 0;  // number of the thread; all that are not the pool's are the first

// What is left of a share: the parts from `begin` to `end` of a loop.
constexpr int kLoopAt = 40, kEndAt = 20;
static_assert(Pool::kParts == int64_t{1} << kEndAt && 2 * kEndAt == kLoopAt);

constexpr uint64_t share_of(uint64_t loop, uint64_t begin, uint64_t end) {
    return loop << kLoopAt | end << kEndAt | begin;
}
constexpr uint64_t loop_of(uint64_t left) { return left >> kLoopAt; }
constexpr int64_t taken(uint64_t left) { return int64_t(left) & (Pool::kParts - 1); }
constexpr bool some(uint64_t left) { return taken(left) < taken(left >> kEndAt); }

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
    // Never destroyed: its threads may outlive static objects.
    static Pool* pool = [] {
        pthread_atfork(nullptr, nullptr, [] { shared().forked(); });
        return new Pool;
    }();
    return *pool;
}

Pool::Turn::Turn(int threads) : alone_(shared().turns_) {
    Pool& pool = shared();
    threads = std::min(threads, kMost);
    pool.start(threads);
    pool.active_ = threads;
    // No thread remembers a loop of long ago: numbers of loops come again.
    for (int t = 0; t < threads; ++t) pool.shares_[t].left = share_of(pool.loop_, 0, 0);
    pool.wanted_ = pool.finished();
    pool.busy_ = true;
    pool.wake();
}

Pool::Turn::~Turn() { shared().busy_ = false; }

void Pool::run(int64_t count, Run run, const void* body, size_t size) {
    const int64_t threads = this->threads();
    wanted_ += count;
    ++loop_;
    for (int64_t t = threads - 1; t >= 0; --t) {
        const uint64_t begin = t * count / threads, end = (t + 1) * count / threads;
        Share& share = shares_[t];
        share.run = run;
        std::memcpy(share.body, body, size);
        share.left.store(share_of(loop_, begin, end), std::memory_order_release);
    }
    help(self);
    for (int looks = 0; finished() != wanted_;) wait(looks);
}

int64_t Pool::finished() const {
    int64_t total = 0;
    for (int t = 0; t < threads(); ++t) {
        total += shares_[t].finished.load(std::memory_order_acquire);
    }
    return total;
}

// Takes parts while there are any.
bool Pool::help(int index) {
    Share& own = shares_[index];
    const int threads = this->threads();
    int64_t done = 0;
    uint64_t at = own.left.load(std::memory_order_acquire);
    while (some(at)) {
        at = own.left.fetch_add(1, std::memory_order_acq_rel);
        if (!some(at)) break;
        own.run(own.body, taken(at));
        ++done;
    }
    // Of others only parts of the loop that the thread has the body of.
    for (int t = 1; t < threads; ++t) {
        std::atomic<uint64_t>& left = shares_[(index + t) % threads].left;
        uint64_t theirs = left.load(std::memory_order_relaxed);
        while (some(theirs) && loop_of(theirs) == loop_of(at)) {
            if (!left.compare_exchange_weak(theirs, theirs + 1, std::memory_order_acq_rel)) continue;
            own.run(own.body, taken(theirs));
            ++done;
            theirs = left.load(std::memory_order_relaxed);
        }
    }
    if (!done) return false;
    own.finished.fetch_add(done, std::memory_order_release);
    return true;
}

void Pool::work(int index) {
    self = index;
    const Rounding rounding;
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
                // Only pauses: the other hyperthread may be computing the next work.
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

void Pool::wake() {
    if (sleepers_ == 0) return;
    std::lock_guard<std::mutex> lock(sleeping_);
    wake_.notify_all();
}

// In a process that was forked off there are no threads, and a thread that is gone may have held
// what others wait for.
void Pool::forked() {
    started_ = 1;
    new (&turns_) std::mutex;
    new (&sleeping_) std::mutex;
    new (&wake_) std::condition_variable;
    sleepers_ = 0;
    busy_ = false;
}

// Starts threads that are missing.
void Pool::start(int threads) {
    if (started_ >= threads) return;
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
