#include "threads.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace rankprune {

namespace {
std::atomic<Threads*> current{nullptr};
std::mutex creation;
}  // namespace

Threads& Threads::instance() {
    if (Threads* t = current.load(std::memory_order_acquire)) return *t;
    std::lock_guard<std::mutex> lock(creation);
    Threads* t = current.load(std::memory_order_relaxed);
    if (!t) {
        // Never freed: its threads sleep until the process ends. A forked child has no threads, so it gets a new pool.
        t = new Threads;
        current.store(t, std::memory_order_release);
#if !defined(_WIN32)
        static const int once = pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); });
        (void)once;
#endif
    }
    return *t;
}

void Threads::run(int64_t count, const std::shared_ptr<Job>& job) {
    if (count <= 1) return job->work(0);
    std::lock_guard<std::mutex> one(callers_);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        count_ = count;
        job_ = job;
        uint64_t turn = turn_.load(std::memory_order_relaxed);
        for (; workers_ < count - 1; workers_++) {
            std::thread worker(&Threads::wait_for_jobs, this, workers_ + 1, turn);
            cores_.add(worker);
            worker.detach();
        }
        cores_.gather(count);
        turn_.store(turn + 1, std::memory_order_release);
    }
    wake_.notify_all();
    job->work(0);
    std::lock_guard<std::mutex> lock(mutex_);
    job_ = nullptr;
}

void Threads::wait_for_jobs(int64_t thread, uint64_t seen) {
    for (;;) {
        for (int i = 0; i < 2000 && turn_.load(std::memory_order_acquire) == seen; i++) pause();
        std::shared_ptr<Job> job;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return turn_.load(std::memory_order_relaxed) != seen; });
            seen = turn_.load(std::memory_order_relaxed);
            if (thread < count_) job = job_;
        }
        if (job) job->work(thread);
    }
}

}  // namespace rankprune
