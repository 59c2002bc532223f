#include "cores.h"

#include "api.h"

#if defined(__linux__)
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace rankprune {

namespace {

std::string line_of(const std::string& path) {
    char text[4096] = "";
    if (FILE* file = std::fopen(path.c_str(), "r")) {
        if (!std::fgets(text, sizeof text, file)) text[0] = 0;
        std::fclose(file);
    }
    return text;
}

// "0-3,64" and the like; the empty set if it is anything else.
cpu_set_t parsed(const std::string& list) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const char* at = list.c_str();
    for (;;) {
        int first, last, length = 0;
        if (std::sscanf(at, "%d%n", &first, &length) != 1) break;
        at += length;
        last = first;
        if (*at == '-') {
            if (std::sscanf(at, "-%d%n", &last, &length) != 1) break;
            at += length;
        }
        if (first < 0 || last < first || last >= CPU_SETSIZE) break;
        for (int i = first; i <= last; i++) CPU_SET(i, &set);
        if (*at == '\n' || !*at) return set;
        if (*at++ != ',') break;
    }
    CPU_ZERO(&set);
    return set;
}

// The CPUs that share a CPU's cache of a level; none if that cannot be read.
cpu_set_t sharing(const std::string& root, int cpu, int level) {
    for (int index = 0; index < 16; index++) {
        const std::string cache = root + "/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index);
        const std::string found = line_of(cache + "/level");
        if (found.empty()) break;
        if (std::atoi(found.c_str()) == level) return parsed(line_of(cache + "/shared_cpu_list"));
    }
    return parsed("");
}

// Cores that these CPUs belong to: hyperthreads share an L1 cache. 0 if it cannot be read.
int64_t cores_of(const std::string& root, const cpu_set_t& cpus) {
    int64_t cores = 0;
    cpu_set_t seen = parsed("");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &cpus) || CPU_ISSET(cpu, &seen)) continue;
        const cpu_set_t core = sharing(root, cpu, 1);
        if (!CPU_ISSET(cpu, &core)) return 0;
        CPU_OR(&seen, &seen, &core);
        cores++;
    }
    return cores;
}

}  // namespace

cpu_set_t near_cpus(const char* root, int cpu, int64_t count, const cpu_set_t& allowed, cpu_set_t* l3) {
    *l3 = sharing(root, cpu, 3);
    cpu_set_t near;
    CPU_AND(&near, l3, &allowed);
    const bool good = CPU_ISSET(cpu, &near) && !CPU_EQUAL(&near, &allowed) && cores_of(root, near) >= count;
    return good ? near : parsed("");
}

void Cores::gather(int64_t count) {
    const int cpu = sched_getcpu();
    if (cpu < 0 || cpu >= CPU_SETSIZE || (count == count_ && CPU_ISSET(cpu, &l3_))) return;
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;  // more CPUs than a set holds
    const cpu_set_t near = near_cpus("/sys/devices/system/cpu", cpu, count, allowed, &l3_);
    count_ = count;
    if (!CPU_COUNT(&l3_)) l3_ = allowed;  // it will not become readable
    const bool move = CPU_COUNT(&near) > 0;
    if (!move && !moved_) return;
    for (auto worker : workers_) pthread_setaffinity_np(worker, sizeof near, move ? &near : &allowed);
    moved_ = move;
}

}  // namespace rankprune

int64_t rp_near(const char* root, int64_t cpu, int64_t count, const int64_t* allowed, int64_t cpus, int64_t* near) {
    cpu_set_t set, l3;
    CPU_ZERO(&set);
    for (int64_t i = 0; i < cpus; i++) CPU_SET(int(allowed[i]), &set);
    const cpu_set_t found = rankprune::near_cpus(root, int(cpu), count, set, &l3);
    int64_t size = 0;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &found)) near[size++] = i;
    return size;
}

#else

int64_t rp_near(const char*, int64_t, int64_t, const int64_t*, int64_t, int64_t*) { return 0; }

#endif
