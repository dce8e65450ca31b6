// C bindings of `threads/readahead.hpp`, which count page faults.

#include "threads/readahead.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <thread>

using namespace paceline;

extern "C" {

std::shared_ptr<AccessTrace>* trace_new() { return new std::shared_ptr<AccessTrace>(new AccessTrace); }
void trace_free(std::shared_ptr<AccessTrace>* trace) { delete trace; }

// A run that reads this; into `found` what is known of it: addresses and bytes.
int64_t trace_run(std::shared_ptr<AccessTrace>* trace, int64_t count, const Span* read, Span* found) {
    (*trace)->begin();
    for (int64_t i = 0; i < count; ++i) (*trace)->note(read[i].at, read[i].bytes);
    (*trace)->end();
    const auto spans = (*trace)->spans();
    std::copy(spans->begin(), spans->end(), found);
    return int64_t(spans->size());
}

ReadAhead* readahead_new() { return new ReadAhead; }
void readahead_free(ReadAhead* readahead) { delete readahead; }
void readahead_turn(ReadAhead* readahead, std::shared_ptr<AccessTrace>* trace) {
    readahead->begin(*trace);
    readahead->end();
}
void readahead_forget(ReadAhead* readahead, std::shared_ptr<AccessTrace>* trace) { readahead->forget(*trace); }

int64_t readahead_read(ReadAhead* readahead, int reader, int readers, int stop) {
    const std::atomic<bool> stopped{stop != 0};
    rusage before, behind;
    getrusage(RUSAGE_THREAD, &before);
    readahead->read(reader, readers, stopped);
    getrusage(RUSAGE_THREAD, &behind);
    return behind.ru_minflt - before.ru_minflt;
}

// Frees memory again and again once it was forgotten, while others read it. Whoever went on reading
// would end the process.
void readahead_forget_while_it_is_read(int times, int64_t bytes) {
    ReadAhead readahead;
    std::atomic<bool> never{false}, over{false};
    std::atomic<int64_t> rounds{0};
    const auto read = [&] {
        for (; !over; ++rounds) readahead.read(0, 1, never);
    };
    std::thread first(read), second(read);
    for (int i = 0; i < times; ++i) {
        const int64_t known = rounds;
        void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const auto trace = std::make_shared<AccessTrace>();
        trace->begin();
        trace->note(memory, bytes);
        trace->end();
        for (int turn = 0; turn < 2; ++turn) {
            readahead.begin(trace);
            readahead.end();
        }
        while (rounds < known + 2 + i % 3) std::this_thread::yield();
        readahead.forget(trace);
        munmap(memory, bytes);
    }
    over = true;
    first.join();
    second.join();
}

}
