// Lets Python work with `ahead.hpp`, and counts the pages that were read for the first time.

#include "ahead.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <thread>

using namespace paceline;

extern "C" {

std::shared_ptr<Trail>* trail_new() { return new std::shared_ptr<Trail>(new Trail); }
void trail_free(std::shared_ptr<Trail>* trail) { delete trail; }

// A run that reads this; into `found` what is known of it: addresses and bytes.
int64_t trail_run(std::shared_ptr<Trail>* trail, int64_t count, const Span* read, Span* found) {
    (*trail)->begin();
    for (int64_t i = 0; i < count; ++i) (*trail)->note(read[i].at, read[i].bytes);
    (*trail)->end();
    const auto spans = (*trail)->spans();
    std::copy(spans->begin(), spans->end(), found);
    return int64_t(spans->size());
}

Ahead* ahead_new() { return new Ahead; }
void ahead_free(Ahead* ahead) { delete ahead; }
void ahead_turn(Ahead* ahead, std::shared_ptr<Trail>* trail) {
    ahead->begin(*trail);
    ahead->end();
}
void ahead_forget(Ahead* ahead, std::shared_ptr<Trail>* trail) { ahead->forget(*trail); }

int64_t ahead_read(Ahead* ahead, int reader, int readers, int stop) {
    const std::atomic<bool> stopped{stop != 0};
    rusage before, behind;
    getrusage(RUSAGE_THREAD, &before);
    ahead->read(reader, readers, stopped);
    getrusage(RUSAGE_THREAD, &behind);
    return behind.ru_minflt - before.ru_minflt;
}

// Frees memory again and again once it was forgotten, while others read it. Whoever went on reading
// would end the process.
void ahead_forget_while_it_is_read(int times, int64_t bytes) {
    Ahead ahead;
    std::atomic<bool> never{false}, over{false};
    std::atomic<int64_t> rounds{0};
    const auto read = [&] {
        for (; !over; ++rounds) ahead.read(0, 1, never);
    };
    std::thread first(read), second(read);
    for (int i = 0; i < times; ++i) {
        const int64_t known = rounds;
        void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const auto trail = std::make_shared<Trail>();
        trail->begin();
        trail->note(memory, bytes);
        trail->end();
        for (int turn = 0; turn < 2; ++turn) {
            ahead.begin(trail);
            ahead.end();
        }
        while (rounds < known + 2 + i % 3) std::this_thread::yield();
        ahead.forget(trail);
        munmap(memory, bytes);
    }
    over = true;
    first.join();
    second.join();
}

}
