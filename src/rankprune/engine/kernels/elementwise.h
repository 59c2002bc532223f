// Additions, products, activations, LayerNorm, softmax, means, gathers, borders.
#pragma once
#include <cmath>

#include "activation.h"

namespace rankprune {
namespace {

static inline Vec combine(Vec a, Vec b, int64_t operation) {
    switch (operation) {
        case kAdd: return a + b;
        case kMul: return a * b;
        case kSub: return a - b;
        case kReverseSub: return b - a;
        case kDiv: return a / b;
        case kReverseDiv: return b / a;
        case kMaximum: return keep_nan(a, max(a, b));
        case kMinimum: return keep_nan(a, min(a, b));
        default: return select_negative(a, a * b, a);
    }
}

static void run_binary(const void* params, int64_t task, float* arena, float*) {
    const Binary& p = *static_cast<const Binary*>(params);
    int64_t parts = (p.rows + kBinaryRows - 1) / kBinaryRows, first = task % parts * kBinaryRows;
    int64_t slab = task / parts / p.channels, c = task / parts % p.channels, end = least(first + kBinaryRows, p.rows);
    const float* a = arena + p.a.at + slab * p.a.slab + c * p.a.chan;
    const float* b = (p.constant ? p.constant : arena + p.b.at) + slab * p.b.slab + c * p.b.chan;
    float* out = arena + p.out.at + slab * p.out.slab + c * p.out.chan;
    for (int64_t r = first; r < end; r++) {
        Vec v = Vec::load(a + r * kLanes);
        if (!p.unary) v = combine(v, Vec::loadu(b + r * p.b_row), p.operation);  // a constant may be unaligned
        activate(v, p.activation).store(out + r * kLanes);
    }
}

// R rows of 8 pixels or tokens at once; two rows are a cache line.
template <int R>
static void norm_rows(const Norm& p, const float* in, float* out) {
    Vec mean[R], variance[R], scale = Vec::of(1.f / float(p.channels));
    for (int r = 0; r < R; r++) mean[r] = variance[r] = zero();
    for (int64_t c = 0; c < p.channels; c++)
        for (int r = 0; r < R; r++) mean[r] = mean[r] + Vec::load(in + c * p.in.chan + r * kLanes);
    for (int r = 0; r < R; r++) mean[r] = mean[r] * scale;
    for (int64_t c = 0; c < p.channels; c++)
        for (int r = 0; r < R; r++) {
            Vec d = Vec::load(in + c * p.in.chan + r * kLanes) - mean[r];
            variance[r].fma(d, d);
        }
    for (int r = 0; r < R; r++)
        variance[r] = Vec::of(1.f) / square_root(variance[r] * scale + Vec::of(float(p.eps)));
    for (int64_t c = 0; c < p.channels; c++) {
        Vec w = Vec::of(p.weight[c]), b = Vec::of(p.bias[c]);
        for (int r = 0; r < R; r++) {
            Vec d = (Vec::load(in + c * p.in.chan + r * kLanes) - mean[r]) * variance[r];
            (d * w + b).store(out + c * p.out.chan + r * kLanes);
        }
    }
}

static void run_norm(const void* params, int64_t task, float* arena, float*) {
    const Norm& p = *static_cast<const Norm*>(params);
    int64_t pairs = (p.rows + 1) / 2, slab = task / pairs, row = task % pairs * 2;
    const float* in = arena + p.in.at + slab * p.in.slab + row * kLanes;
    float* out = arena + p.out.at + slab * p.out.slab + row * kLanes;
    if (row + 2 <= p.rows)
        norm_rows<2>(p, in, out);
    else
        norm_rows<1>(p, in, out);
}

static void softmax_column(const float* in, int64_t in_step, float* out, int64_t out_step, int64_t count, bool safe) {
    Vec top = Vec::load(in);
    for (int64_t i = 1; i < count; i++) top = max(Vec::load(in + i * in_step), top);
    if (safe) top = max(Vec::of(-__FLT_MAX__), top);  // exp(-inf - top) is then 0
    Vec total = zero();
    for (int64_t i = 0; i < count; i++) {
        Vec e = exp(Vec::load(in + i * in_step) - top);
        total = total + e;
        e.store(out + i * out_step);
    }
    if (safe) total = keep_nan(total, max(Vec::of(__FLT_MIN__), total));  // at least 1 unless all scores were -inf
    Vec inverse = Vec::of(1.f) / total;
    for (int64_t i = 0; i < count; i++) (Vec::load(out + i * out_step) * inverse).store(out + i * out_step);
}

static void run_softmax(const void* params, int64_t task, float* arena, float*) {
    const Softmax& p = *static_cast<const Softmax*>(params);
    if (!p.flat) {
        int64_t first = task / p.rows * p.channels, row = task % p.rows * kLanes;
        softmax_column(arena + p.in.at + first * p.in.chan + row, p.in.chan, arena + p.out.at + first * p.out.chan + row,
                       p.out.chan, p.channels, p.safe);
        return;
    }
    const float* in = arena + p.in.at;
    float *out = arena + p.out.at, top = in[0];
    for (int64_t i = 1; i < p.flat; i++) top = in[i] > top ? in[i] : top;
    double total = 0;
    bool none = p.safe && top == -INFINITY;
    for (int64_t i = 0; i < p.flat; i++) total += out[i] = std::exp(in[i] - (none ? 0 : top));
    if (none) total = 1;
    for (int64_t i = 0; i < p.flat; i++) out[i] = float(out[i] / total);
}

static void run_mean(const void* params, int64_t task, float* arena, float*) {
    const Mean& p = *static_cast<const Mean*>(params);
    Vec total = zero();
    float rest = 0;
    int64_t whole = p.images ? p.slabs : p.width / kLanes;
    for (int64_t slab = 0; slab < p.slabs; slab++) {
        const float* s = arena + p.in.at + slab * p.in.slab + task * p.in.chan;
        if (slab < whole) {
            for (int64_t r = 0; r < p.rows; r++) total = total + Vec::load(s + r * kLanes);
        } else {
            for (int64_t r = 0; r < p.rows; r++)
                for (int64_t i = 0; i < p.width % kLanes; i++) rest += s[r * kLanes + i];
        }
    }
    float scale = 1.f / float(p.images ? p.slabs * p.rows : p.rows * p.width);
    if (p.images)
        (total * Vec::of(scale)).store(arena + p.at + task * p.out_chan);
    else
        arena[p.at + task * p.out_chan] = (sum(total) + rest) * scale;
}

static void run_gather(const void* params, int64_t task, float* arena, float*) {
    const Gather& p = *static_cast<const Gather*>(params);
    const float* in = p.constant ? p.constant : arena + p.at;
    float* out = arena + p.out;
    int64_t i = task * kGatherCount, end = least(i + kGatherCount, p.count);
    switch (p.move) {
        case kFloats:
            for (; i < end; i++) out[p.to[i]] = p.from[i] < 0 ? 0.f : in[p.from[i]];
            break;
        case kRows:
            for (; i < end; i++)
                (p.from[i] < 0 ? zero() : p.constant ? Vec::of(in[p.from[i]]) : Vec::load(in + p.from[i]))
                    .store(out + p.to[i]);
            break;
        case kIntoLanes:
            for (; i < end; i++)
                for (int64_t lane = 0; lane < kLanes; lane++) out[p.to[i] + lane] = in[lane * p.count + p.from[i]];
            break;
        case kOutOfLanes:
            for (; i < end; i++)
                for (int64_t lane = 0; lane < kLanes; lane++) out[lane * p.count + p.to[i]] = in[p.from[i] + lane];
            break;
    }
}

static void run_border(const void* params, int64_t task, float* arena, float*) {
    const Border& p = *static_cast<const Border*>(params);
    float* s = arena + p.at + task * p.channels * p.rows * kLanes;
    bool whole = task < p.top || task >= p.slabs - p.bottom;
    if (whole) {
        memset(s, 0, sizeof(float) * size_t(p.channels * p.rows * kLanes));
        return;
    }
    for (int64_t c = 0; c < p.channels; c++, s += p.rows * kLanes) {
        memset(s, 0, sizeof(float) * size_t(p.left * kLanes));
        memset(s + (p.rows - p.right) * kLanes, 0, sizeof(float) * size_t(p.right * kLanes));
    }
}

}  // namespace
}  // namespace rankprune
