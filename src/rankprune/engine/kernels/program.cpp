// A program: operators over one arena, run in order, with the tasks of each distributed over the threads.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "table.h"
#include "threads.h"
#include "variants.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

using namespace rankprune;

namespace {

constexpr int64_t kMostFloats = int64_t(1) << 40;  // limit of an arena or scratch, against overflow of sums

typedef std::chrono::steady_clock Clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Memory {
    float* data = nullptr;
    explicit Memory(int64_t floats) {
        constexpr size_t kPage = size_t(2) << 20;  // a huge page, for fewer TLB misses between channels
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
    std::vector<rp_array> arrays;
};

int64_t size_of(int64_t kind) {
#define RP_SIZE(Name, FIELDS, name) sizeof(Name),
    static const size_t kSizes[kKinds] = {RP_OPERATORS(RP_SIZE)};
#undef RP_SIZE
    return kind < 0 || kind >= kKinds ? 0 : int64_t(kSizes[kind]);
}

// Removes arrays from the caches, as after a run of a network with more weights than the caches hold.
void evict(const std::vector<rp_array>& arrays) {
#if defined(__x86_64__)
    for (const rp_array& array : arrays)
        for (int64_t i = 0; i < array.bytes; i += 64) __builtin_ia32_clflush(static_cast<const char*>(array.data) + i);
    __builtin_ia32_mfence();
#else
    (void)arrays;
#endif
}

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

struct rp_program {
    const Table* table;
    int64_t threads, arena, scratch;
    std::vector<Operator> operators;
    std::mutex mutex;
    std::vector<std::unique_ptr<Memory>> idle;  // arenas of finished runs; concurrent callers have one each

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

    void run(float* data, int64_t first, int64_t last, double* seconds);
};

namespace {

// Runs the operators of a program in order. Each thread first does its own part of an operator's tasks, the same part
// of the values for every operator, and then helps the others. An operator starts when all tasks of the previous one
// are done, whatever the threads that did them are doing by then.
class InOrder : public Job {
  public:
    InOrder(const rp_program& p, float* data, int64_t first, int64_t last, double* seconds)
        : program_(p), data_(data), seconds_(seconds), first_(first), count_(last - first), threads_(p.threads),
          tasks_(size_t(count_)), done_(new Counter[size_t(count_)]), next_(new Counter[size_t(count_ * threads_)]) {
        for (int64_t k = 0; k < count_; k++) {
            tasks_[size_t(k)] = p.operators[size_t(first + k)].tasks;
            for (int64_t t = 0; t < threads_; t++) next_[size_t(k * threads_ + t)].value = begin(k, t);
        }
    }

    void work(int64_t thread) override {
        for (int64_t k = 0; (k = current_.value.load(std::memory_order_acquire)) < count_;) {
            int64_t did = 0;
            for (int64_t i = 0; i < threads_; i++) did += share(k, (thread + i) % threads_, thread);
            if (did && done_[size_t(k)].value.fetch_add(did, std::memory_order_acq_rel) + did == tasks_[size_t(k)])
                advance(k);
            else
                wait_until([&] { return current_.value.load(std::memory_order_acquire) != k; });
        }
    }

  private:
    struct alignas(64) Counter {
        std::atomic<int64_t> value{0};
    };

    int64_t begin(int64_t k, int64_t thread) const { return tasks_[size_t(k)] * thread / threads_; }

    // Does the remaining tasks of one thread's part, on any thread; returns their number.
    int64_t share(int64_t k, int64_t owner, int64_t thread) {
        std::atomic<int64_t>& next = next_[size_t(k * threads_ + owner)].value;
        int64_t end = begin(k, owner + 1), did = 0;
        if (next.load(std::memory_order_relaxed) >= end) return 0;
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < end; did++) {
            // The program and its memory exist until this task is done.
            const Operator& o = program_.operators[size_t(first_ + k)];
            program_.table->run[o.kind](o.params.get(), i, data_, program_.own(data_, thread));
        }
        return did;
    }

    void advance(int64_t k) {
        if (seconds_) {
            Clock::time_point now = Clock::now();
            seconds_[first_ + k] += std::chrono::duration<double>(now - start_).count();
            start_ = now;
        }
        current_.value.store(k + 1, std::memory_order_release);
    }

    const rp_program& program_;
    float* data_;
    double* seconds_;
    int64_t first_, count_, threads_;
    std::vector<int64_t> tasks_;
    std::unique_ptr<Counter[]> done_, next_;
    Counter current_;
    Clock::time_point start_ = Clock::now();
};

// Groups of images, each run by one thread.
class Groups : public Job {
  public:
    Groups(rp_program& p, const rp_copy* in, int64_t ins, const rp_copy* out, int64_t outs, int64_t groups)
        : program_(p), in_(in), out_(out), ins_(ins), outs_(outs), groups_(groups) {}

    void work(int64_t thread) override {
        std::unique_ptr<Memory> m;
        int64_t did = 0;
        for (int64_t g; (g = next_.fetch_add(1, std::memory_order_relaxed)) < groups_; did++) {
            if (!m) m = program_.take();
            if (m->data)
                one(m->data, g);
            else
                failed_ = true;
        }
        if (m) program_.give(std::move(m));
        done_.fetch_add(did, std::memory_order_acq_rel);
        if (!thread) wait_until([&] { return done_.load(std::memory_order_acquire) == groups_; });
    }

    bool failed() const { return failed_; }

  private:
    void one(float* data, int64_t group) {
        copy_in(data, in_, ins_, group);
        for (const Operator& o : program_.operators)
            for (int64_t i = 0; i < o.tasks; i++) program_.table->run[o.kind](o.params.get(), i, data, program_.own(data, 0));
        copy_out(data, out_, outs_, group);
    }

    rp_program& program_;
    const rp_copy *in_, *out_;
    int64_t ins_, outs_, groups_;
    std::atomic<int64_t> next_{0}, done_{0};
    std::atomic<bool> failed_{false};
};

// The multiply-add peak of all threads at once.
class Peak : public Job {
  public:
    Peak(const Table* table, int64_t threads, int64_t turns) : table_(table), threads_(threads), turns_(turns) {}

    void work(int64_t thread) override {
        sink_.store(table_->peak(turns_), std::memory_order_relaxed);
        done_.fetch_add(1, std::memory_order_acq_rel);
        if (!thread) wait_until([&] { return done_.load(std::memory_order_acquire) == threads_; });
    }

  private:
    const Table* table_;
    int64_t threads_, turns_;
    std::atomic<float> sink_{0};  // keeps the compiler from removing the work
    std::atomic<int64_t> done_{0};
};

// Two threads pass a cache line back and forth, to measure the distance of their cores.
class RoundTrip : public Job {
  public:
    explicit RoundTrip(int64_t turns) : turns_(turns) {}

    void work(int64_t thread) override {
        if (thread > 1) return;
        for (int64_t i = 0; i < turns_; i++) {
            wait_until([&] { return line_.load(std::memory_order_acquire) == 2 * i + thread; });
            line_.store(2 * i + thread + 1, std::memory_order_release);
        }
        if (!thread) wait_until([&] { return line_.load(std::memory_order_acquire) == 2 * turns_; });
    }

  private:
    const int64_t turns_;
    alignas(64) std::atomic<int64_t> line_{0};
};

}  // namespace

void rp_program::run(float* data, int64_t first, int64_t last, double* seconds) {
    Threads::instance().run(threads, std::make_shared<InOrder>(*this, data, first, last, seconds));
}

int rp_version() { return 11; }

int64_t rp_lanes(const char* variant) {
    const Table* table = find_table(variant);
    return table ? table->lanes : 0;
}

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
    const Room room{p->arena, p->scratch, p->table->lanes, arrays, count};
    if (const char* wrong = p->table->check(kind, params, tasks, room)) return wrong;
    Operator o{kind, tasks, std::make_unique<int64_t[]>(size_t(size) / 8), {arrays, arrays + count}};
    std::memcpy(o.params.get(), params, size_t(size));
    p->operators.push_back(std::move(o));
    return nullptr;
}

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
    auto job = std::make_shared<Groups>(*p, in, ins, out, outs, groups);
    Threads::instance().run(workers, job);
    return job->failed();
}

double rp_time(rp_program* p, int64_t index, int64_t repeats, int64_t cold) {
    std::unique_ptr<Memory> m = p->take();
    if (!m->data || index < 0 || index >= int64_t(p->operators.size())) return -1;
    double best = 1e30;
    for (int64_t i = 0; i < repeats; i++) {
        if (cold) evict(p->operators[size_t(index)].arrays);
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
    for (int i = 0; i < 3; i++) {
        Clock::time_point start = Clock::now();
        Threads::instance().run(threads, std::make_shared<Peak>(table, threads, kTurns));
        double spent = seconds_since(start);
        if (spent < best) best = spent;
    }
    return double(threads) * double(kTurns) * 12 * double(table->lanes) * 2 / best / 1e9;
}

double rp_round_trip(int64_t turns) {
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        Clock::time_point start = Clock::now();
        Threads::instance().run(2, std::make_shared<RoundTrip>(turns));
        double spent = seconds_since(start) / double(turns);
        if (spent < best) best = spent;
    }
    return best;
}

void rp_free(rp_program* p) { delete p; }
