// Sparse convolution: W output channels by N rows of 8 lanes in registers, one list of non-zeros for the W channels.
#pragma once
#include "activation.h"

namespace rankprune {
namespace {

struct Tile {
    const float* values;
    const uint16_t* offsets;
    int64_t count;
    const float* base;
    int64_t step;        // floats between the inputs of two rows; the constant kLanes where Step is
    const float* start;  // null: the bias starts the sum; else partial sums of earlier blocks
    const float* bias;
    float* partial;      // null: last block, store to out; else keep partial sums here
    const float* res;
    float* out;
    int64_t res_chan, out_chan, activation;
};
typedef void (*TileKernel)(const Tile&);

template <int W, int N, int Step>
void tile(const Tile& t) {
    // Few rows leave the adders waiting for each other: two sets of sums hide that.
    constexpr int kSets = W * N <= 5 ? 2 : 1;
    const int64_t step = Step ? Step : t.step;
    Vec sum[kSets * W * N];
    if (t.start) {
        RP_UNROLL for (int i = 0; i < W * N; i++) sum[i] = Vec::load(t.start + kLanes * i);
    } else {
        RP_UNROLL for (int w = 0; w < W; w++) {
            Vec b = Vec::of(t.bias[w]);
            RP_UNROLL for (int i = 0; i < N; i++) sum[w * N + i] = b;
        }
    }
    const float* value = t.values;
    const uint16_t *at = t.offsets, *end = at + t.count;
    if constexpr (kSets == 2) {
        RP_UNROLL for (int i = 0; i < W * N; i++) sum[W * N + i] = zero();
        for (; at + 2 <= end; at += 2, value += 2 * W) {
            const float *p = t.base + int64_t(at[0]) * kLanes, *q = t.base + int64_t(at[1]) * kLanes;
            RP_UNROLL for (int i = 0; i < N; i++) {
                Vec x = Vec::load(p + step * i), y = Vec::load(q + step * i);
                RP_UNROLL for (int w = 0; w < W; w++) {
                    sum[w * N + i].fma(Vec::of(value[w]), x);
                    sum[W * N + w * N + i].fma(Vec::of(value[W + w]), y);
                }
            }
        }
    }
    for (; at < end; at++, value += W) {
        const float* p = t.base + int64_t(*at) * kLanes;
        if constexpr (W == 1) {
            Vec v = Vec::of(value[0]);
            RP_UNROLL for (int i = 0; i < N; i++) sum[i].fma(v, Vec::load(p + step * i));
        } else if constexpr (N > W) {  // fewer values than rows: the values stay in registers
            Vec v[W];
            RP_UNROLL for (int w = 0; w < W; w++) v[w] = Vec::of(value[w]);
            RP_UNROLL for (int i = 0; i < N; i++) {
                Vec x = Vec::load(p + step * i);
                RP_UNROLL for (int w = 0; w < W; w++) sum[w * N + i].fma(v[w], x);
            }
        } else {
            Vec x[N];
            RP_UNROLL for (int i = 0; i < N; i++) x[i] = Vec::load(p + step * i);
            RP_UNROLL for (int w = 0; w < W; w++) {
                Vec v = Vec::of(value[w]);
                RP_UNROLL for (int i = 0; i < N; i++) sum[w * N + i].fma(v, x[i]);
            }
        }
    }
    if constexpr (kSets == 2) {
        RP_UNROLL for (int i = 0; i < W * N; i++) sum[i] = sum[i] + sum[W * N + i];
    }
    if (t.partial) {
        RP_UNROLL for (int i = 0; i < W * N; i++) sum[i].store(t.partial + kLanes * i);
        return;
    }
    if (t.res) {
        RP_UNROLL for (int w = 0; w < W; w++)
            RP_UNROLL for (int i = 0; i < N; i++)
                sum[w * N + i] = sum[w * N + i] + Vec::load(t.res + w * t.res_chan + kLanes * i);
    }
    if (t.activation == kRelu) {
        RP_UNROLL for (int i = 0; i < W * N; i++) sum[i] = max(zero(), sum[i]);
    }
    RP_UNROLL for (int w = 0; w < W; w++)
        RP_UNROLL for (int i = 0; i < N; i++) sum[w * N + i].store(t.out + w * t.out_chan + kLanes * i);
    if (t.activation > kRelu) {  // the longer ones in a loop of their own: one copy of their code a kernel
        for (int w = 0; w < W; w++)
            for (int i = 0; i < N; i++) {
                float* p = t.out + w * t.out_chan + kLanes * i;
                activate(Vec::load(p), t.activation).store(p);
            }
    }
}

#define RP_ROW(W, N) {tile<W, N, kLanes>, tile<W, N, 0>}
static const TileKernel kTiles1[14][2] = {RP_ROW(1, 1), RP_ROW(1, 2), RP_ROW(1, 3), RP_ROW(1, 4), RP_ROW(1, 5),
                                          RP_ROW(1, 6), RP_ROW(1, 7), RP_ROW(1, 8), RP_ROW(1, 9), RP_ROW(1, 10),
                                          RP_ROW(1, 11), RP_ROW(1, 12), RP_ROW(1, 13), RP_ROW(1, 14)};
static const TileKernel kTiles2[6][2] = {RP_ROW(2, 1), RP_ROW(2, 2), RP_ROW(2, 3),
                                         RP_ROW(2, 4), RP_ROW(2, 5), RP_ROW(2, 6)};
static const TileKernel kTiles4[3][2] = {RP_ROW(4, 1), RP_ROW(4, 2), RP_ROW(4, 3)};
#undef RP_ROW

static void run_conv(const void* params, int64_t task, float* arena, float* scratch) {
    const Conv& c = *static_cast<const Conv*>(params);
    int64_t parts = (c.rows + c.height - 1) / c.height;
    int64_t group = task % c.groups, part = task / c.groups % parts, slab = task / c.groups / parts;
    int64_t row = part * c.rows / parts, rows = (part + 1) * c.rows / parts - row;
    int64_t chunks = c.channels / c.width, size = c.width * rows * kLanes;
    const TileKernel* kernels = c.width == 1 ? kTiles1[rows - 1] : c.width == 2 ? kTiles2[rows - 1] : kTiles4[rows - 1];
    TileKernel kernel = kernels[c.step == kLanes ? 0 : 1];
    const float* in = arena + c.in.at + slab * c.in.slab + row * c.step;
    int64_t first = c.splits[group], last = c.splits[group + 1];
    Tile t;
    t.step = c.step;
    t.res_chan = c.res.chan;
    t.out_chan = c.out.chan;
    t.activation = c.activation;
    for (int64_t block = 0; block < c.blocks; block++)
        for (int64_t chunk = first; chunk < last; chunk++) {
            int64_t list = block * chunks + chunk, channel = chunk * c.width;
            float* partial = scratch + (chunk - first) * size;
            t.values = c.values + c.starts[list] * c.width;
            t.offsets = c.offsets + c.starts[list];
            t.count = c.starts[list + 1] - c.starts[list];
            t.base = in + c.base[list] * kLanes;
            t.start = block ? partial : nullptr;
            t.bias = c.bias + channel;
            t.partial = block + 1 < c.blocks ? partial : nullptr;
            t.res = c.res.at < 0 ? nullptr
                                 : arena + c.res.at + slab * c.res.slab + channel * c.res.chan + row * kLanes;
            t.out = arena + c.out.at + slab * c.out.slab + channel * c.out.chan + row * kLanes;
            kernel(t);
        }
}

}  // namespace
}  // namespace rankprune
