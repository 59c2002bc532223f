// A program: operators over one arena, run in order, the tasks of each shared out over the threads.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "check.h"
#include "table.h"
#include "threads.h"
#include "variants.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

using namespace rankprune;

namespace {

constexpr int64_t kMostFloats = int64_t(1) << 40;  // of an arena or scratch: sizes of all threads' cannot overflow

typedef std::chrono::steady_clock Clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Memory {
    float* data = nullptr;
    explicit Memory(int64_t floats) {
        constexpr size_t kPage = size_t(2) << 20;  // a huge page: far fewer TLB misses between channels
        size_t bytes = size_t(floats) * sizeof(float), align = bytes >= kPage ? kPage : 64;
        bytes = (bytes + align - 1) / align * align + align;
        data = static_cast<float*>(std::aligned_alloc(align, bytes));
        if (!data) return;
#if defined(__linux__)
        if (align == kPage) madvise(data, bytes, MADV_HUGEPAGE);
#endif
        std::memset(data, 0, bytes);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { std::free(data); }
};

struct Operator {
    int64_t kind, tasks;
    std::unique_ptr<int64_t[]> params;
};

int64_t size_of(int64_t kind) {
#define RP_SIZE(Name, FIELDS, name) sizeof(Name),
    static const size_t kSizes[kKinds] = {RP_OPERATORS(RP_SIZE)};
#undef RP_SIZE
    return kind < 0 || kind >= kKinds ? 0 : int64_t(kSizes[kind]);
}

}  // namespace

struct rp_program {
    const Table* table;
    int64_t threads, arena, scratch;
    std::vector<Operator> operators;
    std::mutex mutex;
    std::vector<std::unique_ptr<Memory>> idle;  // arenas of runs that are over: callers at once have one each

    int64_t stride() const { return (scratch + 63) / 64 * 64 + 64; }
    float* own(float* data, int64_t thread) const { return data + (arena + 63) / 64 * 64 + thread * stride(); }

    std::unique_ptr<Memory> take() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            if (!idle.empty()) {
                std::unique_ptr<Memory> m = std::move(idle.back());
                idle.pop_back();
                return m;
            }
        }
        return std::make_unique<Memory>((arena + 63) / 64 * 64 + stride() * threads + 64);
    }

    void give(std::unique_ptr<Memory> m) {
        std::lock_guard<std::mutex> lock(mutex);
        idle.push_back(std::move(m));
    }

    void run(float* data, int64_t first, int64_t last, double* seconds) {
        alignas(64) std::atomic<int64_t> next{0};
        Barrier barrier(threads);
        Clock::time_point start = Clock::now();
        auto body = [&](int64_t thread) {
            float* scratch = own(data, thread);
            for (int64_t k = first; k < last; k++) {
                const Operator& o = operators[size_t(k)];
                Task task = table->run[o.kind];
                for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < o.tasks;)
                    task(o.params.get(), i, data, scratch);
                barrier.arrive([&] {
                    next.store(0, std::memory_order_relaxed);
                    if (seconds) {
                        seconds[k] += seconds_since(start);
                        start = Clock::now();
                    }
                });
            }
        };
        Threads::instance().run(threads, body);
    }
};

int rp_version() { return 7; }

const char* rp_fields(int64_t kind) {
#define RP_TEXT(type, ...) " " #type " " #__VA_ARGS__ ";"
#define RP_FIELDS(Name, FIELDS, name) #Name ":" FIELDS(RP_TEXT),
    static const char* const kFields[kKinds] = {RP_OPERATORS(RP_FIELDS)};
    return kind < 0 || kind >= kKinds ? nullptr : kFields[kind];
}

const char* rp_names(const char* choice) {
#define RP_WORD(name, text) #text " "
    if (!std::strcmp(choice, "activations")) return RP_ACTIVATIONS(RP_WORD);
    if (!std::strcmp(choice, "operations")) return RP_OPERATIONS(RP_WORD);
    if (!std::strcmp(choice, "moves")) return RP_MOVES(RP_WORD);
    return std::strcmp(choice, "inner") ? nullptr : RP_INNER(RP_WORD);
}

int64_t rp_constant(const char* name) {
#define RP_FIND(constant, value) if (!std::strcmp(name, #constant)) return constant;
    RP_CONSTANTS(RP_FIND)
    return -1;
}

rp_program* rp_new(const char* variant, int64_t threads, int64_t arena, int64_t scratch) {
    const Table* table = find_table(variant);
    if (!table || threads < 1 || threads > kMostThreads || arena < 0 || arena > kMostFloats || scratch < 0 ||
        scratch > kMostFloats)
        return nullptr;
    rp_program* p = new (std::nothrow) rp_program;
    if (!p) return nullptr;
    p->table = table;
    p->threads = threads;
    p->arena = arena;
    p->scratch = scratch;
    return p;
}

const char* rp_add(rp_program* p, int64_t kind, const void* params, int64_t tasks, const rp_array* arrays,
                   int64_t count) {
    int64_t size = size_of(kind);
    if (!size) return "an operator there is none of";
    if (const char* wrong = check(kind, params, tasks, Room{p->arena, p->scratch, arrays, count})) return wrong;
    Operator o{kind, tasks, std::make_unique<int64_t[]>(size_t(size) / 8)};
    std::memcpy(o.params.get(), params, size_t(size));
    p->operators.push_back(std::move(o));
    return nullptr;
}

namespace {

void copy_in(float* arena, const rp_copy* in, int64_t ins, int64_t group) {
    for (int64_t i = 0; i < ins; i++)
        std::memcpy(arena + in[i].at, in[i].data + group * in[i].count, size_t(in[i].count) * sizeof(float));
}

bool within(int64_t arena, const rp_copy* copies, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (copies[i].at < 0 || copies[i].count < 0 || copies[i].count > arena - copies[i].at) return false;
    return true;
}

void copy_out(const float* arena, const rp_copy* out, int64_t outs, int64_t group) {
    for (int64_t i = 0; i < outs; i++)
        std::memcpy(out[i].data + group * out[i].count, arena + out[i].at, size_t(out[i].count) * sizeof(float));
}

}  // namespace

int rp_run(rp_program* p, const rp_copy* in, int64_t ins, const rp_copy* out, int64_t outs, double* seconds) {
    if (!within(p->arena, in, ins) || !within(p->arena, out, outs)) return 2;
    std::unique_ptr<Memory> m = p->take();
    if (!m->data) return 1;
    copy_in(m->data, in, ins, 0);
    p->run(m->data, 0, int64_t(p->operators.size()), seconds);
    copy_out(m->data, out, outs, 0);
    p->give(std::move(m));
    return 0;
}

int rp_run_groups(rp_program* p, const rp_copy* in, int64_t ins, const rp_copy* out, int64_t outs, int64_t groups,
                  int64_t workers) {
    if (!within(p->arena, in, ins) || !within(p->arena, out, outs)) return 2;
    std::atomic<int64_t> next{0};
    std::atomic<int> failed{0};
    auto body = [&](int64_t) {
        std::unique_ptr<Memory> m = p->take();
        if (!m->data) {
            failed = 1;
            return;
        }
        for (int64_t g; (g = next.fetch_add(1, std::memory_order_relaxed)) < groups;) {
            copy_in(m->data, in, ins, g);
            for (const Operator& o : p->operators)
                for (int64_t i = 0; i < o.tasks; i++) p->table->run[o.kind](o.params.get(), i, m->data, p->own(m->data, 0));
            copy_out(m->data, out, outs, g);
        }
        p->give(std::move(m));
    };
    Threads::instance().run(workers, body);
    return failed;
}

double rp_time(rp_program* p, int64_t index, int64_t repeats) {
    std::unique_ptr<Memory> m = p->take();
    if (!m->data || index < 0 || index >= int64_t(p->operators.size())) return -1;
    double best = 1e30;
    for (int64_t i = 0; i < repeats; i++) {
        Clock::time_point start = Clock::now();
        p->run(m->data, index, index + 1, nullptr);
        double spent = seconds_since(start);
        if (spent < best) best = spent;
    }
    p->give(std::move(m));
    return best;
}

double rp_peak(const char* variant, int64_t threads) {
    const Table* table = find_table(variant);
    if (!table || threads < 1) return -1;
    constexpr int64_t kTurns = 2000000;
    double best = 1e30;
    std::atomic<float> sink{0};  // keeps the work from being removed
    for (int i = 0; i < 3; i++) {
        Clock::time_point start = Clock::now();
        auto body = [&](int64_t) { sink.store(table->peak(kTurns), std::memory_order_relaxed); };
        Threads::instance().run(threads, body);
        double spent = seconds_since(start);
        if (spent < best) best = spent;
    }
    return double(threads) * double(kTurns) * 12 * kLanes * 2 / best / 1e9;
}

void rp_free(rp_program* p) { delete p; }
