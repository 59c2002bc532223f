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

static void check_binary(Checker& check, const Binary& p, int64_t tasks) {
    check.counts(p.slabs, p.channels, p.rows);
    check.activation(p.activation);
    if (check.wrong) return;
    check.need(between(0, p.operation, kOperations - 1), "an unknown operation");
    check.need(p.b_row == 0 || p.b_row == kLanes, "rows of an operand that do not follow one another");
    check.tasks(Wide(p.slabs) * p.channels * parts_of(p.rows, kBinaryRows), tasks);
    check.view(p.a, p.slabs, p.channels, Wide(p.rows) * kLanes);
    check.view(p.out, p.slabs, p.channels, Wide(p.rows) * kLanes);
    Wide floats = Wide(p.rows - 1) * p.b_row + kLanes;
    if (p.constant) {
        check.need(p.b.slab >= 0 && p.b.chan >= 0, "a negative stride");
        check.array(p.constant, Wide(p.slabs - 1) * p.b.slab + Wide(p.channels - 1) * p.b.chan + floats);
    } else if (!p.unary) {
        check.view(p.b, p.slabs, p.channels, floats);
    } else {
        check.span(p.b.at, 0, false);
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

// Normalises the channels of R vectors of pixels or tokens. Four sums each, because additions to one wait for each other.
template <class V, int R>
static inline void norm_rows(const Norm& p, const float* in, float* out) {
    constexpr int kSums = 4;
    V mean[R], scale[R], sum[kSums][R];
    const V share = V::of(1.f / float(p.channels));
    const auto total = [&](auto add) {
        RP_UNROLL for (int k = 0; k < kSums; k++)
            RP_UNROLL for (int r = 0; r < R; r++) sum[k][r] = V::of(0.f);
        int64_t c = 0;
        const float* x = in;
        for (; c + kSums <= p.channels; c += kSums)
            RP_UNROLL for (int k = 0; k < kSums; k++, x += p.in.chan)
                RP_UNROLL for (int r = 0; r < R; r++) add(sum[k][r], V::load(x + r * V::kFloats), r);
        for (; c < p.channels; c++, x += p.in.chan)
            RP_UNROLL for (int r = 0; r < R; r++) add(sum[0][r], V::load(x + r * V::kFloats), r);
        RP_UNROLL for (int r = 0; r < R; r++) sum[0][r] = (sum[0][r] + sum[1][r]) + (sum[2][r] + sum[3][r]);
    };
    total([](V& s, V x, int) { s = s + x; });
    RP_UNROLL for (int r = 0; r < R; r++) mean[r] = sum[0][r] * share;
    total([&](V& s, V x, int r) { s.fma(x - mean[r], x - mean[r]); });
    RP_UNROLL for (int r = 0; r < R; r++)
        scale[r] = V::of(1.f) / square_root(sum[0][r] * share + V::of(float(p.eps)));
    for (int64_t c = 0; c < p.channels; c++) {
        const V w = V::of(p.weight[c]), b = V::of(p.bias[c]);
        RP_UNROLL for (int r = 0; r < R; r++) {
            V d = (V::load(in + c * p.in.chan + r * V::kFloats) - mean[r]) * scale[r];
            (d * w + b).store(out + c * p.out.chan + r * V::kFloats);
        }
    }
}

static void check_norm(Checker& check, const Norm& p, int64_t tasks) {
    check.counts(p.slabs, p.channels, p.rows);
    if (check.wrong) return;
    check.tasks(Wide(p.slabs) * parts_of(p.rows, 2), tasks);
    check.view(p.in, p.slabs, p.channels, Wide(p.rows) * kLanes);
    check.view(p.out, p.slabs, p.channels, Wide(p.rows) * kLanes);
    check.array(p.weight, p.channels);
    check.array(p.bias, p.channels);
}

static void run_norm(const void* params, int64_t task, float* arena, float*) {
    const Norm& p = *static_cast<const Norm*>(params);
    int64_t pairs = (p.rows + 1) / 2, slab = task / pairs, row = task % pairs * 2;
    const float* in = arena + p.in.at + slab * p.in.slab + row * kLanes;
    float* out = arena + p.out.at + slab * p.out.slab + row * kLanes;
    if (row + 1 == p.rows) return norm_rows<Vec, 1>(p, in, out);
#if defined(__AVX512F__)
    norm_rows<Vec16, 1>(p, in, out);
#else
    norm_rows<Vec, 2>(p, in, out);
#endif
}

// exp(x - largest) of `count` rows of R vectors, and one over the sum of each lane.
template <class V, int R>
static inline void softmax_rows(const float* in, int64_t in_step, float* out, int64_t out_step, int64_t count, bool safe,
                                V* inverse) {
    V top[R], total[R];
    RP_UNROLL for (int r = 0; r < R; r++) top[r] = V::load(in + r * V::kFloats);
    for (int64_t i = 1; i < count; i++)
        RP_UNROLL for (int r = 0; r < R; r++) top[r] = max(V::load(in + i * in_step + r * V::kFloats), top[r]);
    RP_UNROLL for (int r = 0; r < R; r++) {
        if (safe) top[r] = max(V::of(-__FLT_MAX__), top[r]);  // exp(-inf - top) is then 0
        total[r] = V::of(0.f);
    }
    for (int64_t i = 0; i < count; i++)
        RP_UNROLL for (int r = 0; r < R; r++) {
            V e = exp_to_one(V::load(in + i * in_step + r * V::kFloats) - top[r]);
            total[r] = total[r] + e;
            e.store(out + i * out_step + r * V::kFloats);
        }
    RP_UNROLL for (int r = 0; r < R; r++) {
        // At least 1 unless all scores were -inf.
        if (safe) total[r] = keep_nan(total[r], max(V::of(__FLT_MIN__), total[r]));
        inverse[r] = V::of(1.f) / total[r];
    }
}

static void check_softmax(Checker& check, const Softmax& p, int64_t tasks) {
    check.counts(p.channels, p.rows, p.groups);
    check.need(p.flat >= 0, "a negative extent");
    check.flag(p.safe);
    if (check.wrong) return;
    check.tasks(p.flat ? Wide(1) : Wide(p.rows) * p.groups, tasks);
    Wide channels = Wide(p.channels) * p.groups;
    check.need(at_most(channels, kFar), "too many channels");
    if (check.wrong) return;
    if (p.flat) {
        check.span(p.in.at, p.flat, false);
        check.span(p.out.at, p.flat, false);
    } else {
        check.view(p.in, 1, channels.value, Wide(p.rows) * kLanes);
        check.view(p.out, 1, channels.value, Wide(p.rows) * kLanes);
    }
}

static void run_softmax(const void* params, int64_t task, float* arena, float*) {
    const Softmax& p = *static_cast<const Softmax*>(params);
    if (!p.flat) {
        int64_t first = task / p.rows * p.channels, row = task % p.rows * kLanes;
        float* out = arena + p.out.at + first * p.out.chan + row;
        Vec inverse;
        softmax_rows<Vec, 1>(arena + p.in.at + first * p.in.chan + row, p.in.chan, out, p.out.chan, p.channels, p.safe,
                             &inverse);
        for (int64_t i = 0; i < p.channels; i++, out += p.out.chan) (Vec::load(out) * inverse).store(out);
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

static void check_mean(Checker& check, const Mean& p, int64_t tasks) {
    check.counts(p.slabs, p.channels, p.rows, p.width);
    check.need(between(0, p.out_chan, kFar), "a negative stride");
    if (check.wrong) return;
    check.tasks(p.channels, tasks);
    check.view(p.in, p.slabs, p.channels, Wide(p.rows) * kLanes, false);
    check.span(p.at, Wide(p.channels - 1) * p.out_chan + (p.images ? kLanes : 1), p.images != 0);
    check.need(!p.images || p.out_chan % kLanes == 0, "a stride that is not aligned");
    check.need(p.images || parts_of(p.width, kLanes) == p.slabs, "columns that are not those of its slabs");
}

static void run_mean(const void* params, int64_t task, float* arena, float*) {
    const Mean& p = *static_cast<const Mean*>(params);
    Vec total = zero();
    for (int64_t slab = 0; slab < p.slabs; slab++) {
        const float* s = arena + p.in.at + slab * p.in.slab + task * p.in.chan;
        const int64_t lanes = p.images ? kLanes : least(kLanes, p.width - slab * kLanes);
        for (int64_t r = 0; r < p.rows; r++) total = total + load_some(s + r * kLanes, lanes);
    }
    float scale = 1.f / float(p.images ? p.slabs * p.rows : p.rows * p.width);
    if (p.images)
        (total * Vec::of(scale)).store(arena + p.at + task * p.out_chan);
    else
        arena[p.at + task * p.out_chan] = sum(total) * scale;
}

static void check_gather(Checker& check, const Gather& p, int64_t tasks) {
    check.need(between(1, p.count, kFar) && between(kFloats, p.move, kOutOfLanes), "an unknown move");
    check.need(p.at >= 0 && p.out >= 0, "a value before the beginning of the arena");
    if (check.wrong) return;
    check.tasks(parts_of(p.count, kGatherCount), tasks);
    if (!check.array(p.from, p.count) || !check.array(p.to, p.count)) return;
    int64_t from = 0, least = 0, to = 0, first = 0;  // the largest and smallest index of each
    int32_t bits = 0;
    for (int64_t i = 0; i < p.count; i++) {
        from = p.from[i] > from ? p.from[i] : from;
        least = p.from[i] < least ? p.from[i] : least;
        to = p.to[i] > to ? p.to[i] : to;
        first = p.to[i] < first ? p.to[i] : first;
        bits |= p.to[i] | (p.from[i] > 0 && !p.constant ? p.from[i] : 0);
    }
    bool lanes = p.move == kIntoLanes || p.move == kOutOfLanes, rows = p.move == kRows;
    check.need(first >= 0 && (!lanes || (least >= 0 && !p.constant)), "an index before the beginning");
    bool aligned = bits % kLanes == 0 && p.out % kLanes == 0 && (p.constant || p.at % kLanes == 0);
    check.need(!rows || aligned, "a row that is not aligned");
    int64_t row = p.move == kFloats ? 1 : kLanes, images = (kLanes - 1) * p.count + 1;  // floats from an index on
    if (p.constant)
        check.array(p.constant, Wide(from) + 1);
    else
        check.span(p.at, Wide(from) + (p.move == kIntoLanes ? images : row), false);
    check.span(p.out, Wide(to) + (p.move == kOutOfLanes ? images : row), false);
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

static void check_border(Checker& check, const Border& p, int64_t tasks) {
    check.counts(p.slabs, p.channels, p.rows);
    check.limited(0, "a frame that is not a count", p.top, p.bottom, p.left, p.right);
    if (check.wrong) return;
    check.tasks(p.slabs, tasks);
    check.need(p.left + p.right <= p.rows, "a frame wider than the image");
    check.span(p.at, Wide(p.slabs) * p.channels * p.rows * kLanes, true);
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
