// Linear layer of one vector, and attention.
#pragma once
#include <type_traits>

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

// K sums of R vectors: out[i][r] = scale[r] * sum of a[i][t] * b[t][r], t = 0 .. count-1; scalars of a are broadcast.
template <class V, int R, int K>
static void panel(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step, int64_t count,
                  const V* scale, float* out, int64_t out_step) {
    V s[K][R];
    const float* from[(K + 3) / 4];  // of every fourth sum, because there are fewer registers for addresses
    const int64_t third = 3 * a_row;
    RP_UNROLL for (int i = 0; i < K; i++) {
        if (i % 4 == 0) from[i / 4] = a + i * a_row;
        RP_UNROLL for (int r = 0; r < R; r++) s[i][r] = V::of(0.f);
    }
    for (int64_t t = 0; t < count; t++, b += b_step) {
        V x[R];
        RP_UNROLL for (int r = 0; r < R; r++) x[r] = V::loadu(b + r * V::kFloats);
        RP_UNROLL for (int i = 0; i < K; i++) {
            const V v = V::of(from[i / 4][i % 4 == 3 ? third : i % 4 * a_row]);
            RP_UNROLL for (int r = 0; r < R; r++) s[i][r].fma(v, x[r]);
        }
        RP_UNROLL for (int i = 0; i < K; i += 4) from[i / 4] += a_step;
    }
    RP_UNROLL for (int i = 0; i < K; i++)
        RP_UNROLL for (int r = 0; r < R; r++) (s[i][r] * scale[r]).store(out + i * out_step + r * V::kFloats);
}

template <class V>
using Panel = void (*)(const float*, int64_t, int64_t, const float*, int64_t, int64_t, const V*, float*, int64_t);

// Sums of a panel: with 32 registers of 16 floats 24 of them, with 16 registers of 8 floats 12.
template <class V, int R>
constexpr int kMostSums = V::kFloats == 16 || R == 1 ? 12 : 6;

template <class V, int R>
static inline void product(const float* a, int64_t a_row, int64_t a_step, int64_t a_rows, const float* b,
                           int64_t b_step, int64_t count, const V* scale, float* out, int64_t out_step) {
    static const Panel<V> kPanels[12] = {
        panel<V, R, 1>, panel<V, R, 2>, panel<V, R, 3>, panel<V, R, 4>, panel<V, R, 5>, panel<V, R, 6>,
        panel<V, R, kMostSums<V, R> == 12 ? 7 : 6>,  panel<V, R, kMostSums<V, R> == 12 ? 8 : 6>,
        panel<V, R, kMostSums<V, R> == 12 ? 9 : 6>,  panel<V, R, kMostSums<V, R> == 12 ? 10 : 6>,
        panel<V, R, kMostSums<V, R> == 12 ? 11 : 6>, panel<V, R, kMostSums<V, R>>};
    const int64_t parts = parts_of(a_rows, kMostSums<V, R>);
    for (int64_t part = 0; part < parts; part++) {  // of about the same size, because few sums wait for each other
        const int64_t i = part * a_rows / parts, sums = (part + 1) * a_rows / parts - i;
        kPanels[sums - 1](a + i * a_row, a_row, a_step, b, b_step, count, scale, out + i * out_step, out_step);
    }
}

// Calls make(vector, number of vectors, row) for the parts of up to kTokens rows in which they are computed: in the widest
// vectors that read nothing beyond the last whole row of 8.
template <class Make>
static inline void in_parts(int64_t row, int64_t rows, Make make) {
    const int64_t end = least(row + kTokens, rows);
#if defined(__AVX512F__)
    for (; end - row > 3 * kLanes; row += 4 * kLanes) make(Vec16{}, std::integral_constant<int, 2>{}, row);
    for (; end - row > kLanes; row += 2 * kLanes) make(Vec16{}, std::integral_constant<int, 1>{}, row);
#else
    for (; end - row > kLanes; row += 2 * kLanes) make(Vec{}, std::integral_constant<int, 2>{}, row);
#endif
    if (row < end) make(Vec{}, std::integral_constant<int, 1>{}, row);
}

// The first of the rows of a group and head, from row `first` on.
static inline int64_t place(const Operand& o, int64_t group, int64_t head, int64_t first) {
    return o.at + group * o.group + head * o.head + first * o.row;
}

// Writes columns of `valid` floats from rows of R vectors in the scratch.
template <class V, int R>
static inline void put_columns(const float* from, int64_t columns, int64_t valid, float* out, int64_t out_step) {
    constexpr int64_t kStep = R * V::kFloats;
    for (int64_t c = 0; c < columns; c++, from += kStep, out += out_step)
        if (valid == kStep)
            for (int r = 0; r < R; r++) V::load(from + r * V::kFloats).storeu(out + r * V::kFloats);
        else
            memcpy(out, from, sizeof(float) * size_t(valid));
}

template <class V, int R>
static void multiply(const Product& p, int64_t group, int64_t head, int64_t row, float* arena, float* scratch) {
    constexpr int64_t kStep = R * V::kFloats;
    V scale[R];
    for (int r = 0; r < R; r++) scale[r] = V::of(float(p.scale));
    product<V, R>(arena + place(p.b, group, head, 0), p.b.row, p.b.depth, p.columns, arena + place(p.a, group, head, row),
                  p.a.depth, p.depth, scale, scratch, kStep);
    put_columns<V, R>(scratch, p.columns, least(p.rows - row, kStep), arena + place(p.out, group, head, row), p.out.depth);
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
    in_parts(row, p.rows, [&](auto vector, auto count, int64_t first) {
        multiply<decltype(vector), decltype(count)::value>(p, group, head, first, arena, scratch);
    });
}

template <class V, int R>
static void attend(const Attention& p, int64_t group, int64_t head, int64_t token, float* arena, float* scratch) {
    constexpr int64_t kStep = R * V::kFloats;
    V factor[R];
    for (int r = 0; r < R; r++) factor[r] = V::of(p.scale[group * p.scale_group + head * p.scale_head]);
    product<V, R>(arena + place(p.k, group, head, 0), p.k.row, p.k.depth, p.keys, arena + place(p.q, group, head, token),
                  p.q.depth, p.dim, factor, scratch, kStep);
    if (p.bias.at >= 0) {
        const float* bias = (p.constant ? p.constant : arena) + place(p.bias, group, head, token);
        for (int64_t key = 0; key < p.keys; key++)
            for (int r = 0; r < R; r++) {
                float* s = scratch + key * kStep + r * V::kFloats;
                const float* b = bias + key * p.bias.depth;
                (V::load(s) + (p.bias.row ? V::loadu(b + r * V::kFloats) : V::of(*b))).store(s);
            }
    }
    softmax_rows<V, R>(scratch, kStep, scratch, kStep, p.keys, p.safe, factor);
    float* made = scratch + p.keys * kStep;
    product<V, R>(arena + place(p.v, group, head, 0), p.v.depth, p.v.row, p.value_dim, scratch, kStep, p.keys, factor,
                  made, kStep);
    put_columns<V, R>(made, p.value_dim, least(p.tokens - token, kStep), arena + place(p.out, group, head, token),
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
    in_parts(token, p.tokens, [&](auto vector, auto count, int64_t first) {
        attend<decltype(vector), decltype(count)::value>(p, group, head, first, arena, scratch);
    });
}

}  // namespace
}  // namespace rankprune
