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
    const RunKernel* kernels = c.width == 1 ? kRuns1[rows - 1] : c.width == 2 ? kRuns2[rows - 1] : kRuns4[rows - 1];
    return kernels[c.step == kLanes ? 0 : 1];
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
