// Linear layer of one vector, and attention.
#pragma once
#include "elementwise.h"

namespace rankprune {
namespace {

static void run_linear(const void* params, int64_t task, float* arena, float*) {
    const Linear& p = *static_cast<const Linear*>(params);
    const float* x = arena + p.at;
    int64_t first = task * kLinearOutputs, end = least(first + kLinearOutputs, p.outputs);
    alignas(32) float y[kLinearOutputs] = {};
    for (int64_t o = first; o < end; o++) {
        float total;
        if (p.columns) {
            float s[4] = {0, 0, 0, 0};
            int64_t k = p.starts[o], last = p.starts[o + 1];
            for (; k + 4 <= last; k += 4)
                for (int j = 0; j < 4; j++) s[j] += p.values[k + j] * x[p.columns[k + j]];
            for (; k < last; k++) s[0] += p.values[k] * x[p.columns[k]];
            total = (s[0] + s[1]) + (s[2] + s[3]);
        } else {
            const float* w = p.values + o * ((p.inputs + 7) / 8 * 8);
            Vec s[4] = {zero(), zero(), zero(), zero()};
            int64_t i = 0;
            for (; i + 32 <= p.inputs; i += 32)
                for (int j = 0; j < 4; j++) s[j].fma(Vec::loadu(w + i + 8 * j), Vec::load(x + i + 8 * j));
            for (; i + 8 <= p.inputs; i += 8) s[0].fma(Vec::loadu(w + i), Vec::load(x + i));
            total = sum((s[0] + s[1]) + (s[2] + s[3]));
            for (; i < p.inputs; i++) total += w[i] * x[i];
        }
        y[o - first] = total + p.bias[o] + (p.res < 0 ? 0.f : arena[p.res + o]);
    }
    for (int64_t i = 0; i < kLinearOutputs; i += kLanes)
        activate(Vec::load(y + i), p.activation).store(y + i);
    for (int64_t o = first; o < end; o++) arena[p.out + o] = y[o - first];
}

// K sums of R rows: sum[i][r] += a[i][t] * b[t][r], t = 0 .. count-1; a's scalars are broadcast.
template <int K, int R>
static inline void panel(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step, int64_t count,
                         float scale, float* out, int64_t out_step) {
    Vec s[K * R];
    RP_UNROLL for (int i = 0; i < K * R; i++) s[i] = zero();
    for (int64_t t = 0; t < count; t++) {
        Vec x[R];
        RP_UNROLL for (int r = 0; r < R; r++) x[r] = Vec::load(b + t * b_step + r * kLanes);
        RP_UNROLL for (int i = 0; i < K; i++) {
            Vec v = Vec::of(a[i * a_row + t * a_step]);
            RP_UNROLL for (int r = 0; r < R; r++) s[i * R + r].fma(v, x[r]);
        }
    }
    Vec f = Vec::of(scale);
    RP_UNROLL for (int i = 0; i < K; i++)
        RP_UNROLL for (int r = 0; r < R; r++) (s[i * R + r] * f).store(out + i * out_step + r * kLanes);
}

template <int R>
static inline void product(const float* a, int64_t a_row, int64_t a_step, int64_t a_rows, const float* b,
                           int64_t b_step, int64_t count, float scale, float* out, int64_t out_step) {
    int64_t i = 0;
    for (; i + 6 <= a_rows; i += 6)
        panel<6, R>(a + i * a_row, a_row, a_step, b, b_step, count, scale, out + i * out_step, out_step);
    for (; i < a_rows; i++)
        panel<1, R>(a + i * a_row, a_row, a_step, b, b_step, count, scale, out + i * out_step, out_step);
}

template <int R>
static void attend(const Attention& p, int64_t head, int64_t row, float* arena, float* scratch) {
    const float* q = arena + p.q.at + head * p.q_head * p.q.chan + row * kLanes;
    const float* k = arena + p.k.at + head * p.k_head * p.k.chan;
    const float* v = arena + p.v.at + head * p.v_head * p.v.chan;
    float* out = arena + p.out.at + head * p.out_head * p.out.chan + row * kLanes;
    product<R>(k, 1, p.k.chan, p.keys, q, p.q.chan, p.dim, float(p.scale), scratch, R * kLanes);
    for (int r = 0; r < R; r++)
        softmax_column(scratch + r * kLanes, R * kLanes, scratch + r * kLanes, R * kLanes, p.keys);
    product<R>(v, p.v.chan, 1, p.value_dim, scratch, R * kLanes, p.keys, 1.f, out, p.out.chan);
}

static void run_attention(const void* params, int64_t task, float* arena, float* scratch) {
    const Attention& p = *static_cast<const Attention*>(params);
    int64_t rows = (p.tokens + 7) / 8, pairs = (rows + 1) / 2, head = task / pairs, row = task % pairs * 2;
    if (row + 2 <= rows)
        attend<2>(p, head, row, arena, scratch);
    else
        attend<1>(p, head, row, arena, scratch);
}

}  // namespace
}  // namespace rankprune
