// One pool of threads for the whole process: however many engines there are, they never oversubscribe each other.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace rankprune {

class Threads {
  public:
    static Threads& instance();
    // Runs body(thread) for thread = 0 .. count-1 at once, thread 0 being the caller; one caller at a time.
    template <class Body>
    void run(int64_t count, Body& body) {
        call(count, [](void* b, int64_t thread) { (*static_cast<Body*>(b))(thread); }, &body);
    }

  private:
    typedef void (*Function)(void*, int64_t);
    void call(int64_t count, Function function, void* body);
    void work(int64_t thread, uint64_t seen);
    std::mutex callers_, mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> turn_{0};
    std::atomic<int64_t> busy_{0};
    int64_t count_ = 0;
    Function function_ = nullptr;
    void* body_ = nullptr;
    int64_t workers_ = 0;
};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spin a little, since the wait is mostly microseconds; then let others have the core.
template <class Done>
inline void wait_until(Done done) {
    for (int i = 0; i < 2000; i++) {
        if (done()) return;
        pause();
    }
    while (!done()) std::this_thread::yield();
}

// The threads of one run meet here between operators.
class Barrier {
  public:
    explicit Barrier(int64_t count) : count_(count) {}
    template <class Last>
    void arrive(Last last) {  // the last to arrive runs `last` before the others go on
        uint64_t turn = turn_.load(std::memory_order_acquire);
        if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
            waiting_.store(0, std::memory_order_relaxed);
            last();
            turn_.store(turn + 1, std::memory_order_release);
        } else {
            wait_until([&] { return turn_.load(std::memory_order_acquire) != turn; });
        }
    }

  private:
    const int64_t count_;
    alignas(64) std::atomic<int64_t> waiting_{0};
    alignas(64) std::atomic<uint64_t> turn_{0};
};

}  // namespace rankprune
