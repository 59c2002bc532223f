// One task of a convolution with generated code: some rows of a slab, for a group of chunks of output channels.
#pragma once
#include "conv_narrow.h"
#include "jit.h"

namespace rankprune {
namespace {

constexpr int64_t kPair = 2 * kLanes;  // floats of a vector: two rows

static void check_code(Checker& check, const uint8_t* code) {
    if (check.wrong || !check.array(code, int64_t(sizeof(Jit)))) return;
    const Jit& jit = *reinterpret_cast<const Jit*>(code);
    check.need(jit.mark == kJitMark && check.array(code, jit.bytes), "code that was not generated here");
}

static int64_t chunks_of(const uint8_t* code) {
    const Jit& jit = *reinterpret_cast<const Jit*>(code);
    return parts_of(jit.outputs, jit.width);
}

static void check_jit_conv(Checker& check, const JitConv& c, int64_t tasks) {
    check.counts(c.slabs, c.rows, c.channels, c.height, c.groups);
    check.need(check.room.lanes == kPair && c.height % 2 == 0, "vectors that this kernel cannot have");
    check.activation(c.activation);
    check.flag(c.by_group);
    check_code(check, c.code);
    if (c.next) check_code(check, c.next);
    if (check.wrong) return;
    check.need(!c.next || between(1, c.next_chunks, chunks_of(c.next)), "chunks that the next layer does not have");
    const Jit& jit = *reinterpret_cast<const Jit*>(c.code);
    check.need(jit.outputs == c.channels && jit.residual == (c.res.at >= 0) &&
                   jit.relu == (c.activation.kind == kRelu), "code of another layer");
    check.tasks(Wide(c.slabs) * parts_of(c.rows, c.height) * c.groups, tasks);
    // With an odd number of rows the last vector reads one row more, whose results are not stored.
    const int64_t read = c.rows + c.rows % 2;
    Wide first = Wide(c.in.at) + jit.low;
    check.need(!first.over && first.value >= 0, "a tap before the beginning of the arena");
    check.view({c.in.at, c.in.slab, 0}, c.slabs, 1, Wide(read) * kLanes + jit.high);
    check_results(check, c, read);
    if (jit.masked) check.array(c.masks, Wide(parts_of(c.rows, 2)) * kJitMasks);
    check.need(check.ascending(c.splits, c.groups) == parts_of(c.channels, jit.width),
               "groups that do not cover the channels");
    check.scratch(Wide(2) * jit.width * kPair);
}

// Two rows of a chunk, or one, at a place that is not a whole vector: they pass through the scratch.
static void through_scratch(const JitConv& c, JitKernel kernel, const float* in, const float* res, float* out,
                            const uint16_t* masks, int64_t channels, int64_t rows, int64_t row_stride, int64_t lanes,
                            float* scratch) {
    float* const results = scratch + channels * kPair;
    if (res)
        for (int64_t i = 0; i < channels; i++)
            for (int64_t y = 0; y < rows; y++)
                load_some(res + i * c.res.chan + y * row_stride, lanes).store(scratch + i * kPair + y * kLanes);
    kernel(in, scratch, results, kPair * 4, kPair * 4, masks);
    for (int64_t i = 0; i < channels; i++)
        for (int64_t y = 0; y < rows; y++)
            store_some(activate(Vec::load(results + i * kPair + y * kLanes), c.activation),
                       out + i * c.out.chan + y * row_stride, lanes);
}

// Loads part `part` of `parts` of a chunk's code and weights into the L2 cache. They were last used for the previous
// image, so they come from memory, and the processor runs through code faster than it looks ahead.
static void prefetch(const Jit& jit, int64_t chunk, int64_t part, int64_t parts) {
#if defined(__x86_64__)
    auto fetch = [&](const void* from, const void* to) {
        const char* begin = static_cast<const char*>(from);
        const int64_t lines = (static_cast<const char*>(to) - begin) / 64 + 1;
        for (int64_t i = lines * part / parts; i < lines * (part + 1) / parts; i++)
            asm volatile("prefetcht1 (%0)" : : "r"(begin + 64 * i));  // compilers remove loops of __builtin_prefetch
    };
    const char* code = reinterpret_cast<const char*>(&jit);
    fetch(code + jit.chunk[chunk].entry, code + jit.chunk[chunk + 1].entry);
    fetch(jit.chunk[chunk].values, jit.chunk[chunk + 1].values);
#endif
}

static void run_jit_conv(const void* params, int64_t task, float* arena, float* scratch) {
    const JitConv& c = *static_cast<const JitConv*>(params);
    const Jit& jit = *reinterpret_cast<const Jit*>(c.code);
    const int64_t parts = parts_of(c.rows, c.height), tiles = c.slabs * parts, pairs = (c.rows + 1) / 2;
    const int64_t group = c.by_group ? task / tiles : task % c.groups, tile = c.by_group ? task % tiles : task / c.groups;
    const int64_t part = tile % parts, slab = tile / parts;
    const int64_t first = part * pairs / parts * 2, end = least((part + 1) * pairs / parts * 2, c.rows);
    const int64_t row_stride = c.columns ? c.columns : kLanes;
    const int64_t lanes = c.columns ? least(kLanes, c.columns - slab * kLanes) : kLanes;
    const float* in = arena + c.in.at + slab * c.in.slab;
    const float* res = c.res.at < 0 ? nullptr : arena + c.res.at + slab * (c.columns ? kLanes : c.res.slab);
    float* out = arena + c.out.at + slab * (c.columns ? kLanes : c.out.slab);
    const int64_t count = (end - first + 1) / 2, last = c.splits[group + 1];
    const bool ahead = count >= 4 || !tile;  // else the code is in the cache already from the task before
    for (int64_t chunk = c.splits[group]; chunk < last; chunk++) {
        const JitKernel kernel = kernel_of(jit, chunk);
        const int64_t channel = chunk * jit.width, channels = least(jit.width, c.channels - channel);
        for (int64_t row = first; row < end; row += 2) {
            const float* skip = res ? res + channel * c.res.chan + row * row_stride : nullptr;
            if (ahead && chunk + 1 < last)
                prefetch(jit, chunk + 1, (row - first) / 2, count);
            else if (c.next && chunk + 1 == last)
                prefetch(*reinterpret_cast<const Jit*>(c.next), task * c.next_chunks / (tiles * c.groups),
                         (row - first) / 2, count);
            float* to = out + channel * c.out.chan + row * row_stride;
            const uint16_t* masks = c.masks ? c.masks + row / 2 * kJitMasks : nullptr;
            if (c.columns || row + 2 > c.rows) {
                through_scratch(c, kernel, in + row * kLanes, skip, to, masks, channels, least(int64_t(2), c.rows - row),
                                row_stride, lanes, scratch);
                continue;
            }
            kernel(in + row * kLanes, skip, to, c.out.chan * 4, c.res.chan * 4, masks);
            if (c.activation.kind > kRelu) activate_vectors(to, channels, c.out.chan, c.activation);
        }
    }
}

}  // namespace
}  // namespace rankprune
