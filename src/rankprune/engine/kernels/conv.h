// One task of a convolution: some rows of a slab, for a group of output channels.
#pragma once
#include "conv_narrow.h"
#include "conv_wide.h"

namespace rankprune {
namespace {

static RunKernel kernel_of(const Conv& c, int64_t rows) {
#if defined(__AVX512F__)
    if (c.lanes > kLanes) return (c.width == 1 ? kWide1 : kWide4)[rows - 1];
#endif
    int64_t n = rows - 1;
    return (c.width == 1 ? kNarrow1[n] : c.width == 2 ? kNarrow2[n] : kNarrow4[n])[c.step != kLanes];
}

static void check_conv(Checker& check, const Conv& c, int64_t tasks) {
    check.counts(c.slabs, c.rows, c.channels, c.height, c.groups, c.blocks);
    check.need(between(1, c.step, kFar) && c.step % kLanes == 0, "a step that is not aligned");
    bool wide = c.lanes == 16 && check.room.lanes >= 16 && c.step == kLanes;
    check.need(c.lanes == kLanes || (wide && c.height % 2 == 0), "vectors that this kernel cannot have");
    int64_t tallest = c.width == 1 ? (wide ? 16 : 14) : c.width == 4 ? (wide ? 12 : 3) : c.width == 2 && !wide ? 6 : 0;
    check.need(c.height <= tallest, "a kernel shape there is none for");
    if (check.wrong) return;
    check.need(c.channels % c.width == 0, "channels that the kernel's width does not divide");
    check.activation(c.activation);
    check.flag(c.by_group);
    check.tasks(Wide(c.slabs) * parts_of(c.rows, c.height) * c.groups, tasks);
    int64_t chunks = c.channels / c.width;
    Wide lists = Wide(c.blocks) * chunks;
    check.array(c.bias, c.channels);
    if (!at_most(lists, kFar) || !check.array(c.base, lists)) return check.need(false, "too many lists");
    int64_t taps = check.ascending(c.starts, lists.value);
    if (taps < 0 || !check.array(c.offsets, taps) || !check.array(c.values, Wide(taps) * c.width)) return;
    int64_t low = 0, high = 0;  // rows read, relative to the view
    bool near = true;
    for (int64_t list = 0; list < lists.value; list++) {
        if (c.starts[list] == c.starts[list + 1]) continue;
        near = near && between(-kFar, c.base[list], kFar);
        if (!near) break;
        uint16_t least = 0xffff, most = 0;
        for (int64_t i = c.starts[list]; i < c.starts[list + 1]; i++) {
            least = c.offsets[i] < least ? c.offsets[i] : least;
            most = c.offsets[i] > most ? c.offsets[i] : most;
        }
        low = c.base[list] + least < low ? c.base[list] + least : low;
        high = c.base[list] + most > high ? c.base[list] + most : high;
    }
    check.need(near, "a tap that is too far away");
    if (check.wrong) return;
    if (taps) {
        Wide first = Wide(c.in.at) + Wide(low) * kLanes;
        check.need(!first.over && first.value >= 0, "a tap before the beginning of the arena");
        check.view({c.in.at, c.in.slab, 0}, c.slabs, 1, Wide(c.rows - 1) * c.step + Wide(high) * kLanes + kLanes);
    }
    check_results(check, c, c.rows);
    int64_t end = check.ascending(c.splits, c.groups);
    if (end < 0) return;
    check.need(end == chunks, "groups that do not cover the channels");
    const int64_t tiles = c.columns ? (c.res.at >= 0 ? 2 : 1) : c.blocks > 1;
    for (int64_t g = 0; g < c.groups; g++)
        check.scratch(Wide(c.splits[g + 1] - c.splits[g]) * c.width * c.height * kLanes * tiles);
}

static void run_conv(const void* params, int64_t task, float* arena, float* scratch) {
    const Conv& c = *static_cast<const Conv*>(params);
    int64_t parts = (c.rows + c.height - 1) / c.height;
    int64_t group = c.by_group ? task / (c.slabs * parts) : task % c.groups;
    int64_t tile = c.by_group ? task % (c.slabs * parts) : task / c.groups, part = tile % parts, slab = tile / parts;
    // Parts start at whole vectors: at any row, or at every second one.
    int64_t unit = c.lanes / kLanes, units = (c.rows + unit - 1) / unit;
    int64_t row = part * units / parts * unit, rows = least((part + 1) * units / parts * unit, c.rows) - row;
    int64_t chunks = c.channels / c.width, first = c.splits[group], channel = first * c.width;
    RunKernel kernel = kernel_of(c, rows);
    Run r;
    r.lists = c.splits[group + 1] - first;
    r.in = arena + c.in.at + slab * c.in.slab + row * c.step;
    r.step = c.step;
    r.partial = scratch;
    r.res = c.res.at < 0 ? nullptr : arena + c.res.at + slab * c.res.slab + channel * c.res.chan + row * kLanes;
    r.res_chan = c.res.chan;
    r.out_chan = c.out.chan;
    // Rows of an image without slabs are made in the scratch, where the sums of the blocks are too.
    const int64_t size = rows * kLanes, channels = r.lists * c.width, lanes = least(kLanes, c.columns - slab * kLanes);
    float* const apart = arena + c.out.at + slab * kLanes + channel * c.out.chan + row * c.columns;
    if (c.columns) {
        r.out_chan = r.res_chan = size;
        if (r.res) {
            const float* res = arena + c.res.at + slab * kLanes + channel * c.res.chan + row * c.columns;
            r.res = scratch + channels * size;
            for (int64_t i = 0; i < channels * rows; i++)
                load_some(res + i / rows * c.res.chan + i % rows * c.columns, lanes)
                    .store(scratch + channels * size + i * kLanes);
        }
    }
    r.activation = c.activation;
    for (int64_t block = 0; block < c.blocks; block++) {
        int64_t list = block * chunks + first;
        r.starts = c.starts + list;
        r.base = c.base + list;
        r.values = c.values + r.starts[0] * c.width;
        r.offsets = c.offsets + r.starts[0];
        r.bias = block ? nullptr : c.bias + channel;
        r.out = block + 1 < c.blocks ? nullptr
                : c.columns          ? scratch
                                     : arena + c.out.at + slab * c.out.slab + channel * c.out.chan + row * kLanes;
        kernel(r);
    }
    for (int64_t i = 0; c.columns && i < channels; i++)
        for (int64_t y = 0; y < rows; y++)
            store_some(Vec::load(scratch + i * size + y * kLanes), apart + i * c.out.chan + y * c.columns, lanes);
}

}  // namespace
}  // namespace rankprune
