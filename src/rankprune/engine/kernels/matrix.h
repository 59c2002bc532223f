// Linear layer of one vector, and attention.
#pragma once
#include "elementwise.h"

namespace rankprune {
namespace {

static void check_linear(Checker& check, const Linear& p, int64_t tasks) {
    check.counts(p.inputs, p.outputs);
    check.activation(p.activation);
    if (check.wrong) return;
    check.tasks(parts_of(p.outputs, kLinearOutputs), tasks);
    check.span(p.at, p.inputs, true);
    check.span(p.out, p.outputs, false);
    if (p.res >= 0) check.span(p.res, p.outputs, false);
    check.array(p.bias, p.outputs);
    if (!p.columns) {
        check.array(p.values, Wide(p.outputs) * (parts_of(p.inputs, kLanes) * kLanes));
        return;
    }
    int64_t taps = check.ascending(p.starts, p.outputs);
    if (taps < 0 || !check.array(p.columns, taps) || !check.array(p.values, taps)) return;
    bool sound = true;
    for (int64_t i = 0; i < taps; i++) sound = sound && p.columns[i] < p.inputs;
    check.need(sound, "a column that is not there");
}

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

// K sums of R rows: sum[i][r] += a[i][t] * b[t][r], t = 0 .. count-1; scalars of a are broadcast.
template <int K, int R>
static inline void panel(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step, int64_t count,
                         float scale, float* out, int64_t out_step) {
    Vec s[K * R];
    RP_UNROLL for (int i = 0; i < K * R; i++) s[i] = zero();
    for (int64_t t = 0; t < count; t++) {
        Vec x[R];
        RP_UNROLL for (int r = 0; r < R; r++) x[r] = Vec::loadu(b + t * b_step + r * kLanes);
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

// The first of the rows of a group and head, from row `first` on.
static inline int64_t place(const Operand& o, int64_t group, int64_t head, int64_t first) {
    return o.at + group * o.group + head * o.head + first * o.row;
}

// Writes columns of `valid` floats from rows of R * 8 floats in the scratch.
template <int R>
static inline void put_columns(const float* from, int64_t columns, int64_t valid, float* out, int64_t out_step) {
    for (int64_t c = 0; c < columns; c++, from += R * kLanes, out += out_step)
        if (valid == R * kLanes)
            for (int r = 0; r < R; r++) Vec::load(from + r * kLanes).storeu(out + r * kLanes);
        else
            memcpy(out, from, sizeof(float) * size_t(valid));
}

template <int R>
static void multiply(const Product& p, int64_t group, int64_t head, int64_t row, float* arena, float* scratch) {
    product<R>(arena + place(p.b, group, head, 0), p.b.row, p.b.depth, p.columns, arena + place(p.a, group, head, row),
               p.a.depth, p.depth, float(p.scale), scratch, R * kLanes);
    put_columns<R>(scratch, p.columns, least(p.rows - row, R * kLanes), arena + place(p.out, group, head, row),
                   p.out.depth);
}

// The last float of an operand, relative to its start.
static Wide last_float(Checker& check, const Operand& o, int64_t groups, int64_t heads, int64_t rows,
                       int64_t depth) {
    check.limited(0, "a stride that is too large", o.group, o.head, o.row, o.depth);
    return Wide(groups - 1) * o.group + Wide(heads - 1) * o.head + Wide(rows - 1) * o.row + Wide(depth - 1) * o.depth;
}

// Rows that are read in whole vectors, up to 7 floats beyond the last one.
static int64_t in_lanes(int64_t rows) { return parts_of(rows, kLanes) * kLanes; }

static void check_product(Checker& check, const Product& p, int64_t tasks) {
    check.counts(p.groups, p.heads, p.rows, p.columns, p.depth);
    if (check.wrong) return;
    check.tasks(Wide(p.groups) * p.heads * parts_of(p.rows, kTokens), tasks);
    check.need(p.a.row == 1 && p.out.row == 1, "rows that do not lie together");
    check.span(p.a.at, last_float(check, p.a, p.groups, p.heads, in_lanes(p.rows), p.depth) + 1, false);
    check.span(p.b.at, last_float(check, p.b, p.groups, p.heads, p.columns, p.depth) + 1, false);
    check.span(p.out.at, last_float(check, p.out, p.groups, p.heads, p.rows, p.columns) + 1, false);
    check.scratch(Wide(kTokens) * p.columns);
}

static void run_product(const void* params, int64_t task, float* arena, float* scratch) {
    const Product& p = *static_cast<const Product*>(params);
    int64_t parts = (p.rows + kTokens - 1) / kTokens, row = task % parts * kTokens, head = task / parts % p.heads;
    int64_t group = task / parts / p.heads;
    if (p.rows - row > kLanes)
        multiply<2>(p, group, head, row, arena, scratch);
    else
        multiply<1>(p, group, head, row, arena, scratch);
}

template <int R>
static void attend(const Attention& p, int64_t group, int64_t head, int64_t token, float* arena, float* scratch) {
    constexpr int64_t kStep = R * kLanes;
    float scale = p.scale[group * p.scale_group + head * p.scale_head];
    product<R>(arena + place(p.k, group, head, 0), p.k.row, p.k.depth, p.keys, arena + place(p.q, group, head, token),
               p.q.depth, p.dim, scale, scratch, kStep);
    if (p.bias.at >= 0) {
        const float* bias = (p.constant ? p.constant : arena) + place(p.bias, group, head, token);
        for (int64_t key = 0; key < p.keys; key++)
            for (int r = 0; r < R; r++) {
                float* s = scratch + key * kStep + r * kLanes;
                const float* b = bias + key * p.bias.depth;
                (Vec::load(s) + (p.bias.row ? Vec::loadu(b + r * kLanes) : Vec::of(*b))).store(s);
            }
    }
    for (int r = 0; r < R; r++) softmax_column(scratch + r * kLanes, kStep, scratch + r * kLanes, kStep, p.keys, p.safe);
    float* made = scratch + p.keys * kStep;
    product<R>(arena + place(p.v, group, head, 0), p.v.depth, p.v.row, p.value_dim, scratch, kStep, p.keys, 1.f, made,
               kStep);
    put_columns<R>(made, p.value_dim, least(p.tokens - token, kStep), arena + place(p.out, group, head, token),
                   p.out.depth);
}

static void check_attention(Checker& check, const Attention& p, int64_t tasks) {
    check.counts(p.groups, p.heads, p.dim, p.value_dim, p.tokens, p.keys);
    if (check.wrong) return;
    check.tasks(Wide(p.groups) * p.heads * parts_of(p.tokens, kTokens), tasks);
    check.need(p.q.row == 1 && p.out.row == 1, "tokens that do not lie together");
    check.span(p.q.at, last_float(check, p.q, p.groups, p.heads, in_lanes(p.tokens), p.dim) + 1, false);
    check.span(p.k.at, last_float(check, p.k, p.groups, p.heads, p.keys, p.dim) + 1, false);
    check.span(p.v.at, last_float(check, p.v, p.groups, p.heads, p.keys, p.value_dim) + 1, false);
    check.span(p.out.at, last_float(check, p.out, p.groups, p.heads, p.tokens, p.value_dim) + 1, false);
    check.limited(0, "a stride that is too large", p.scale_group, p.scale_head);
    check.array(p.scale, Wide(p.groups - 1) * p.scale_group + Wide(p.heads - 1) * p.scale_head + 1);
    check.flag(p.safe);
    check.need(p.bias.at >= -1, "a bias before the beginning of the arena");
    if (p.bias.at >= 0) {
        check.need(p.bias.row == 0 || p.bias.row == 1, "tokens of a bias that do not lie together");
        Wide size = last_float(check, p.bias, p.groups, p.heads, in_lanes(p.tokens), p.keys) + 1;
        if (p.constant) {
            check.need(p.bias.at <= kFar, "a bias that is too far away");
            check.array(p.constant, size + p.bias.at);
        } else {
            check.span(p.bias.at, size, false);
        }
    }
    check.scratch(Wide(kTokens) * (Wide(p.keys) + p.value_dim));
}

static void run_attention(const void* params, int64_t task, float* arena, float* scratch) {
    const Attention& p = *static_cast<const Attention*>(params);
    int64_t parts = (p.tokens + kTokens - 1) / kTokens, token = task % parts * kTokens;
    int64_t head = task / parts % p.heads, group = task / parts / p.heads;
    if (p.tokens - token > kLanes)
        attend<2>(p, group, head, token, arena, scratch);
    else
        attend<1>(p, group, head, token, arena, scratch);
}

}  // namespace
}  // namespace rankprune
