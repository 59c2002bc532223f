// One thread pool for the whole process, so that several engines do not oversubscribe the cores.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "cores.h"

namespace rankprune {

// Work that any number of threads share. A thread that starts late, or is not scheduled, does not delay the others: it
// finds nothing to do. It may look for work after the job is over, so a job owns everything that this needs.
struct Job {
    virtual ~Job() = default;
    virtual void work(int64_t thread) = 0;  // on thread 0, the caller, it returns when all work is done
};

class Threads {
  public:
    static Threads& instance();
    // Threads 1 .. count-1 of the pool work on the job together with the caller, thread 0; one caller at a time.
    void run(int64_t count, const std::shared_ptr<Job>& job);

  private:
    void wait_for_jobs(int64_t thread, uint64_t seen);
    std::mutex callers_, mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> turn_{0};
    int64_t count_ = 0, workers_ = 0;
    std::shared_ptr<Job> job_;  // null between jobs
    Cores cores_;
};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spin for some microseconds, because most waits are shorter; then yield the core.
template <class Done>
inline void wait_until(Done done) {
    for (int i = 0; i < 500; i++) {
        if (done()) return;
        pause();
    }
    while (!done()) std::this_thread::yield();
}

}  // namespace rankprune
