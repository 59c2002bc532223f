// Which cores the threads of a pool should run on: those that share the caller's L3 cache. What one thread writes and
// another reads goes through that cache; between two L3 caches it takes several times as long.
#pragma once
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace rankprune {

#if defined(__linux__)

// The CPUs out of `allowed` that share the L3 cache of `cpu`, which is set to `l3`; none if they are all the allowed
// ones, are not `count` cores, or if the system does not say. root: /sys/devices/system/cpu.
cpu_set_t near_cpus(const char* root, int cpu, int64_t count, const cpu_set_t& allowed, cpu_set_t* l3);

// Keeps the workers of a pool near its caller.
class Cores {
  public:
    void add(std::thread& worker) { workers_.push_back(worker.native_handle()); }
    // Before `count` threads work, the caller among them. Only if it has moved to another L3 cache, or their number has
    // changed, does this take longer than some nanoseconds.
    void gather(int64_t count);

  private:
    std::vector<std::thread::native_handle_type> workers_;
    cpu_set_t l3_{};      // of the caller when it was last looked at
    int64_t count_ = 0;   // threads then
    bool moved_ = false;  // the workers have an affinity of their own
};

#else

class Cores {
  public:
    void add(std::thread&) {}
    void gather(int64_t) {}
};

#endif

}  // namespace rankprune
