// Checks once, before an operator first runs, that it stays within the memory it was given. All memory that it accesses
// follows from its parameters: the first and last offsets are computed in 64-bit integers that detect overflow, and
// compared with the arena, the scratch and the arrays. Each operator's check_NAME is next to its run_NAME.
#pragma once
#include "table.h"

namespace rankprune {
namespace {

constexpr int64_t kFar = int64_t(1) << 40;  // limit of extents, shifts and strides

struct Wide {  // an integer that records overflow
    int64_t value;
    bool over = false;
    Wide(int64_t v) : value(v) {}
};
static inline Wide operator+(Wide a, Wide b) {
    Wide c(0);
    c.over = __builtin_add_overflow(a.value, b.value, &c.value) || a.over || b.over;
    return c;
}
static inline Wide operator*(Wide a, Wide b) {
    Wide c(0);
    c.over = __builtin_mul_overflow(a.value, b.value, &c.value) || a.over || b.over;
    return c;
}
static inline bool at_most(Wide a, int64_t limit) { return !a.over && a.value <= limit; }
static inline bool equal(Wide a, int64_t b) { return !a.over && a.value == b; }
static inline bool between(int64_t low, int64_t value, int64_t high) { return low <= value && value <= high; }
static inline int64_t parts_of(int64_t count, int64_t size) { return count / size + (count % size != 0); }

struct Checker {
    const Room& room;
    const char* wrong = nullptr;  // what was found first

    explicit Checker(const Room& r) : room(r) {}

    void need(bool sound, const char* what) {
        if (!sound && !wrong) wrong = what;
    }

    template <class... Integers>
    void limited(int64_t low, const char* what, Integers... each) {
        (need(between(low, each, kFar), what), ...);
    }

    template <class... Integers>
    void counts(Integers... each) {
        limited(1, "an extent that is not a count", each...);
    }

    void flag(int64_t value) { need(value == 0 || value == 1, "a flag that is neither 0 nor 1"); }

    // A program waits for the last task of each operator, so there must be one.
    void tasks(Wide expected, int64_t given) {
        need(equal(expected, given) && given > 0, "another number of tasks than its extents give");
    }

    // Floats first .. first + size - 1 of the arena; `aligned` if they are read as rows of 8.
    void span(int64_t first, Wide size, bool aligned) {
        need(first >= 0 && at_most(Wide(first) + size, room.arena), "a value beyond the end of the arena");
        need(!aligned || first % kLanes == 0, "a value that is not aligned");
    }

    // [slab][channel][floats] of a value.
    void view(const View& v, int64_t slabs, int64_t channels, Wide floats, bool aligned = true) {
        need(v.slab >= 0 && v.chan >= 0, "a negative stride");
        need(!aligned || (v.slab % kLanes == 0 && v.chan % kLanes == 0), "a stride that is not aligned");
        span(v.at, Wide(slabs - 1) * v.slab + Wide(channels - 1) * v.chan + floats, aligned);
    }

    void scratch(Wide floats) { need(at_most(floats, room.scratch), "more scratch than there is"); }

    // Whether an array with at least this many numbers was given.
    template <class T>
    bool array(const T* data, Wide size) {
        if (equal(size, 0)) return true;
        int64_t bytes = -1;
        for (int64_t i = 0; i < room.count; i++)
            if (room.arrays[i].data == data && room.arrays[i].bytes > bytes) bytes = room.arrays[i].bytes;
        bool sound = data && bytes >= 0 && at_most(size * int64_t(sizeof(T)), bytes);
        need(sound, "an array that is too short or was not given");
        return sound;
    }

    void activation(const Active& a) { need(between(kNone, a.kind, kActivations - 1), "an unknown activation"); }

    // Checks ascending bounds of lists, starting at 0; returns the last one, or -1.
    int64_t ascending(const int64_t* bounds, int64_t lists) {
        if (!array(bounds, Wide(lists) + 1)) return -1;
        bool sound = bounds[0] == 0;
        for (int64_t i = 0; i < lists; i++) sound = sound && bounds[i] <= bounds[i + 1];
        need(sound, "lists that are not in order");
        return sound ? bounds[lists] : -1;
    }
};

}  // namespace
}  // namespace rankprune
