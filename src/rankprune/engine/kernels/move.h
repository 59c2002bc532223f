// Moves as nests of loops.
#pragma once
#include "checker.h"
#include "vec.h"

namespace rankprune {
namespace {

static inline void copy_rows(const Nest& n, const float* in, float* out) {
    const auto &row = n.axis[kAxes - 2], &item = n.axis[kAxes - 1];
    for (int64_t i = 0; i < row.size; i++, in += row.from, out += row.to) {
        int64_t j = 0;
        for (; j + kLanes <= item.size; j += kLanes) Vec::loadu(in + j).storeu(out + j);
        for (; j < item.size; j++) out[j] = in[j];
    }
}

static inline void turn_blocks(const Nest& n, const float* in, float* out) {
    const auto &read = n.axis[kAxes - 2], &write = n.axis[kAxes - 1];
    int64_t i = 0;
    for (; i + kLanes <= read.size; i += kLanes) {
        int64_t j = 0;
        for (; j + kLanes <= write.size; j += kLanes) {
            Vec block[kLanes];
            RP_UNROLL for (int k = 0; k < kLanes; k++) block[k] = Vec::loadu(in + i + (j + k) * write.from);
            transpose(block);
            RP_UNROLL for (int k = 0; k < kLanes; k++) block[k].storeu(out + (i + k) * read.to + j);
        }
        for (; j < write.size; j++)
            for (int64_t k = i; k < i + kLanes; k++) out[k * read.to + j] = in[k + j * write.from];
    }
    for (; i < read.size; i++)
        for (int64_t j = 0; j < write.size; j++) out[i * read.to + j] = in[i + j * write.from];
}

static inline void one_by_one(const Nest& n, const float* in, float* out) {
    const auto &row = n.axis[kAxes - 2], &item = n.axis[kAxes - 1];
    for (int64_t i = 0; i < row.size; i++, in += row.from, out += row.to)
        for (int64_t j = 0; j < item.size; j++) out[j * item.to] = in[j * item.from];
}

// Every nest must stay within the source and the arena, and have as many tasks as its outer loops need.
static void check_move(Checker& check, const Move& p, int64_t tasks) {
    check.need(between(1, p.count, kFar) && p.at >= 0 && p.out >= 0, "an unknown move");
    if (check.wrong || !check.array(p.nests, p.count)) return;
    int64_t next = 0;
    for (int64_t i = 0; i < p.count && !check.wrong; i++) {
        const Nest& n = p.nests[i];
        check.need(n.first == next && between(1, n.chunk, kFar), "tasks that do not follow one another");
        check.need(between(kCopy, n.inner, kScalar), "an unknown inner loop");
        Wide total = 1, from[2] = {n.source, n.source}, to[2] = {n.target, n.target};  // minimum and maximum
        for (int64_t a = 0; a < kAxes && !check.wrong; a++) {
            const auto& axis = n.axis[a];
            check.counts(axis.size);
            check.need(between(-kFar, axis.from, kFar) && between(-kFar, axis.to, kFar), "a stride that is too large");
            if (check.wrong) return;
            if (a < kAxes - 2) total = total * axis.size;
            from[axis.from > 0] = from[axis.from > 0] + Wide(axis.size - 1) * axis.from;
            to[axis.to > 0] = to[axis.to > 0] + Wide(axis.size - 1) * axis.to;
        }
        const auto &before = n.axis[kAxes - 2], &last = n.axis[kAxes - 1];
        check.need(n.inner != kCopy || (last.from == 1 && last.to == 1), "rows that do not lie together");
        check.need(n.inner != kTranspose || (before.from == 1 && last.to == 1), "blocks that do not lie together");
        check.need(!total.over && !from[0].over && from[0].value >= 0 && !to[0].over && to[0].value >= 0,
                   "a move from before the beginning");
        if (check.wrong) return;
        if (p.constant)
            check.array(p.constant, from[1] + 1);
        else
            check.span(p.at, from[1] + 1, false);
        check.span(p.out, to[1] + 1, false);
        next += parts_of(total.value, n.chunk);
        check.need(next <= kFar, "too many tasks");
    }
    check.tasks(next, tasks);
}

static void run_move(const void* params, int64_t task, float* arena, float*) {
    const Move& p = *static_cast<const Move*>(params);
    int64_t low = 0, high = p.count - 1;
    while (low < high) {  // the last nest that begins at or before this task
        int64_t middle = (low + high + 1) / 2;
        if (p.nests[middle].first <= task)
            low = middle;
        else
            high = middle - 1;
    }
    const Nest& n = p.nests[low];
    constexpr int64_t kOuter = kAxes - 2;
    int64_t total = 1, at[kOuter], in = n.source, out = n.target;
    for (int64_t a = 0; a < kOuter; a++) total *= n.axis[a].size;
    int64_t item = (task - n.first) * n.chunk, end = least(item + n.chunk, total), rest = item;
    for (int64_t a = kOuter - 1; a >= 0; a--) {
        at[a] = rest % n.axis[a].size;
        rest /= n.axis[a].size;
        in += at[a] * n.axis[a].from;
        out += at[a] * n.axis[a].to;
    }
    const float* source = p.constant ? p.constant : arena + p.at;
    float* target = arena + p.out;
    for (; item < end; item++) {
        switch (n.inner) {
            case kCopy: copy_rows(n, source + in, target + out); break;
            case kTranspose: turn_blocks(n, source + in, target + out); break;
            default: one_by_one(n, source + in, target + out);
        }
        for (int64_t a = kOuter - 1; a >= 0; a--) {
            in += n.axis[a].from;
            out += n.axis[a].to;
            if (++at[a] < n.axis[a].size) break;
            in -= at[a] * n.axis[a].from;
            out -= at[a] * n.axis[a].to;
            at[a] = 0;
        }
    }
}

}  // namespace
}  // namespace rankprune
