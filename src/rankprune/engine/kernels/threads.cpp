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
        // Never freed: its threads sleep until the process ends. A forked child has no threads, so it starts afresh.
        t = new Threads;
        current.store(t, std::memory_order_release);
#if !defined(_WIN32)
        static const int once = pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); });
        (void)once;
#endif
    }
    return *t;
}

void Threads::call(int64_t count, Function function, void* body) {
    if (count <= 1) {
        function(body, 0);
        return;
    }
    std::lock_guard<std::mutex> one(callers_);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        count_ = count;
        function_ = function;
        body_ = body;
        busy_.store(count - 1, std::memory_order_relaxed);
        uint64_t turn = turn_.load(std::memory_order_relaxed);
        for (; workers_ < count - 1; workers_++)
            std::thread(&Threads::work, this, workers_ + 1, turn).detach();
        turn_.store(turn + 1, std::memory_order_release);
    }
    wake_.notify_all();
    function(body, 0);
    wait_until([&] { return busy_.load(std::memory_order_acquire) == 0; });
}

void Threads::work(int64_t thread, uint64_t seen) {
    for (;;) {
        for (int i = 0; i < 2000 && turn_.load(std::memory_order_acquire) == seen; i++) pause();
        Function function = nullptr;
        void* body = nullptr;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return turn_.load(std::memory_order_relaxed) != seen; });
            seen = turn_.load(std::memory_order_relaxed);
            if (thread < count_) {
                function = function_;
                body = body_;
            }
        }
        if (!function) continue;
        function(body, thread);
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace rankprune
