// Sparse convolution in vectors of 8 lanes: conv_narrow<W, N, Step> computes W output channels by N rows of 8 lanes in
// registers, from one list of non-zeros for the W channels.
#pragma once
#include "activation.h"

namespace rankprune {
namespace {

// A run of contiguous lists of one block of input channels, for N rows of one slab.
struct Run {
    const float* values;
    const uint16_t* offsets;
    const int64_t *starts, *base;  // of the run's first list
    int64_t lists;
    const float* in;
    int64_t step;          // floats between the inputs of two rows; the constant kLanes where Step is
    const float* bias;     // null: sums continue from `partial`, as earlier blocks left them
    float* partial;
    const float* res;      // null if there is no residual
    float* out;            // null: the sums stay in `partial` for the next block
    int64_t res_chan, out_chan;
    Active activation;
};
typedef void (*RunKernel)(const Run&);

// What a convolution writes, and what it adds: in slabs, or rows of `columns` floats. read: rows that it adds, of a slab.
template <class Params>
static void check_results(Checker& check, const Params& c, int64_t read) {
    check.need(between(0, c.columns, kFar) && (!c.columns || parts_of(c.columns, kLanes) == c.slabs),
               "columns that are not those of its slabs");
    auto one = [&](const View& v, int64_t rows) {
        if (c.columns)
            check.view({v.at, 0, v.chan}, 1, c.channels, Wide(c.rows) * c.columns, false);
        else
            check.view(v, c.slabs, c.channels, Wide(rows) * kLanes);
    };
    one(c.out, c.rows);
    if (c.res.at >= 0) one(c.res, read);
}

template <int W, int N, int Step>
void conv_narrow(const Run& r) {
    // With few rows the additions depend on each other, so two sets of sums hide their latency.
    constexpr int kSets = W * N <= 5 ? 2 : 1;
    const int64_t step = Step ? Step : r.step, res_chan = r.res_chan, out_chan = r.out_chan;
    const float *value = r.values, *bias = r.bias, *in = r.in, *res = r.res;
    const uint16_t *at = r.offsets, *origin = at - r.starts[0];
    float *partial = r.partial, *out = r.out;
    const bool relu = r.activation.kind == kRelu, curved = r.activation.kind > kRelu;
    for (int64_t list = 0; list < r.lists; list++) {
        Vec sum[kSets * W * N];
        if (bias) {
            RP_UNROLL for (int w = 0; w < W; w++) {
                Vec b = Vec::of(bias[w]);
                RP_UNROLL for (int i = 0; i < N; i++) sum[w * N + i] = b;
            }
            bias += W;
        } else {
            RP_UNROLL for (int i = 0; i < W * N; i++) sum[i] = Vec::load(partial + kLanes * i);
        }
        const float* base = in + r.base[list] * kLanes;
        const uint16_t* end = origin + r.starts[list + 1];
        if constexpr (kSets == 2) {
            RP_UNROLL for (int i = 0; i < W * N; i++) sum[W * N + i] = zero();
            for (; at + 2 <= end; at += 2, value += 2 * W) {
                const float *p = base + int64_t(at[0]) * kLanes, *q = base + int64_t(at[1]) * kLanes;
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
            const float* p = base + int64_t(*at) * kLanes;
            if constexpr (W == 1) {
                Vec v = Vec::of(value[0]);
                RP_UNROLL for (int i = 0; i < N; i++) sum[i].fma(v, Vec::load(p + step * i));
            } else if constexpr (N > W) {  // fewer values than rows, so the values stay in registers
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
        if (!out) {
            RP_UNROLL for (int i = 0; i < W * N; i++) sum[i].store(partial + kLanes * i);
            partial += W * N * kLanes;
            continue;
        }
        partial += W * N * kLanes;
        if (res) {
            RP_UNROLL for (int w = 0; w < W; w++)
                RP_UNROLL for (int i = 0; i < N; i++)
                    sum[w * N + i] = sum[w * N + i] + Vec::load(res + w * res_chan + kLanes * i);
            res += W * res_chan;
        }
        if (relu) {
            RP_UNROLL for (int i = 0; i < W * N; i++) sum[i] = max(zero(), sum[i]);
        }
        RP_UNROLL for (int w = 0; w < W; w++)
            RP_UNROLL for (int i = 0; i < N; i++) sum[w * N + i].store(out + w * out_chan + kLanes * i);
        if (curved) {  // the expensive ones in a separate loop, so that their code exists once per kernel
            for (int w = 0; w < W; w++)
                for (int i = 0; i < N; i++) {
                    float* p = out + w * out_chan + kLanes * i;
                    activate(Vec::load(p), r.activation).store(p);
                }
        }
        out += W * out_chan;
    }
}

// By width W, then [N - 1][whether the step is not kLanes].
#define RP_ROW(W, N) {conv_narrow<W, N, kLanes>, conv_narrow<W, N, 0>}
static const RunKernel kNarrow1[14][2] = {RP_ROW(1, 1), RP_ROW(1, 2), RP_ROW(1, 3), RP_ROW(1, 4), RP_ROW(1, 5),
                                          RP_ROW(1, 6), RP_ROW(1, 7), RP_ROW(1, 8), RP_ROW(1, 9), RP_ROW(1, 10),
                                          RP_ROW(1, 11), RP_ROW(1, 12), RP_ROW(1, 13), RP_ROW(1, 14)};
static const RunKernel kNarrow2[6][2] = {RP_ROW(2, 1), RP_ROW(2, 2), RP_ROW(2, 3),
                                         RP_ROW(2, 4), RP_ROW(2, 5), RP_ROW(2, 6)};
static const RunKernel kNarrow4[3][2] = {RP_ROW(4, 1), RP_ROW(4, 2), RP_ROW(4, 3)};
#undef RP_ROW

}  // namespace
}  // namespace rankprune
