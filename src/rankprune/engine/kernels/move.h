// Moves as nests of loops.
#pragma once
#include "api.h"
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
