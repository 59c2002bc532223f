// Sparse convolution in vectors of 16 lanes (AVX-512), each of which is two consecutive rows of 8: conv_wide1<N> and
// conv_wide4<N> compute one and four output channels by N rows of 8 lanes.
#pragma once
#include "conv_narrow.h"

#if defined(__AVX512F__)
#include <immintrin.h>

namespace rankprune {
namespace {

typedef float F16 __attribute__((vector_size(64), aligned(32), may_alias));  // half of the rows do not start a line

static inline F16 load16(const float* p) { return *reinterpret_cast<const F16*>(p); }
static inline F16 of16(float x) { return reinterpret_cast<F16>(_mm512_set1_ps(x)); }

static inline F8 low(F16 v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }

// Loads what a list of weights has some bytes after p into the caches: weights that are read once per image come from
// memory.
static inline void prefetch_weights(const void* p, int64_t bytes) {
    asm volatile("prefetcht0 (%0)" : : "r"(static_cast<const char*>(p) + bytes));
}

// N rows of 8 lanes: N / 2 vectors of 16, and one of 8 if N is odd.
template <int N>
struct Tile {
    static constexpr int kWide = N / 2;
    static constexpr bool kTail = N % 2;
    F16 wide[kWide ? kWide : 1];
    Vec tail;

    inline void fill(float x) {
        F16 v = of16(x);
        RP_UNROLL for (int i = 0; i < kWide; i++) wide[i] = v;
        if constexpr (kTail) tail = Vec::of(x);
    }
    inline void load(const float* p) {
        RP_UNROLL for (int i = 0; i < kWide; i++) wide[i] = load16(p + 16 * i);
        if constexpr (kTail) tail = Vec::load(p + 16 * kWide);
    }
    inline void store(float* p) const {
        RP_UNROLL for (int i = 0; i < kWide; i++) *reinterpret_cast<F16*>(p + 16 * i) = wide[i];
        if constexpr (kTail) tail.store(p + 16 * kWide);
    }
    inline void fma(F16 v, const float* p) {
        RP_UNROLL for (int i = 0; i < kWide; i++) wide[i] += v * load16(p + 16 * i);
        if constexpr (kTail) tail.v += low(v) * Vec::load(p + 16 * kWide).v;
    }
    inline void fma(F16 v, const Tile& x) {
        RP_UNROLL for (int i = 0; i < kWide; i++) wide[i] += v * x.wide[i];
        if constexpr (kTail) tail.v += low(v) * x.tail.v;
    }
    inline void add(const float* p) {
        RP_UNROLL for (int i = 0; i < kWide; i++) wide[i] += load16(p + 16 * i);
        if constexpr (kTail) tail = tail + Vec::load(p + 16 * kWide);
    }
    inline void add(const Tile& other) {
        RP_UNROLL for (int i = 0; i < kWide; i++) wide[i] += other.wide[i];
        if constexpr (kTail) tail = tail + other.tail;
    }
    inline void relu() {
        F16 o = of16(0.f);
        RP_UNROLL for (int i = 0; i < kWide; i++) wide[i] = o > wide[i] ? o : wide[i];
        if constexpr (kTail) tail = max(zero(), tail);
    }
};

template <int N>
static inline void store_result(const Run& r, Tile<N>& sum, const float* res, float* out) {
    if (res) sum.add(res);
    if (r.activation.kind == kRelu) sum.relu();
    sum.store(out);
    if (r.activation.kind > kRelu) {
        activate_vectors(out, N / 2, 2 * kLanes, r.activation);
        if (N % 2) activate(Vec::load(out + kLanes * (N - 1)), r.activation).store(out + kLanes * (N - 1));
    }
}

// One output channel by N rows. Four taps at a time: one load for their values and one for their offsets, because each
// multiply-add already needs a load, and loads are the bottleneck.
template <int N>
void conv_wide1(const Run& r) {
    constexpr int kVectors = (N + 1) / 2, kSets = kVectors == 1 ? 4 : kVectors <= 3 ? 2 : 1;
    const float *value = r.values, *bias = r.bias, *res = r.res;
    const uint16_t *at = r.offsets, *origin = at - r.starts[0];
    float *partial = r.partial, *out = r.out;
    __m512i lane[4];
    RP_UNROLL for (int j = 0; j < 4; j++) {
        lane[j] = _mm512_set1_epi32(j);
        asm("" : "+v"(lane[j]));  // keep it in a register instead of loading a constant
    }
    for (int64_t list = 0; list < r.lists; list++) {
        Tile<N> sum[kSets];
        if (bias)
            sum[0].fill(*bias++);
        else
            sum[0].load(partial);
        RP_UNROLL for (int j = 1; j < kSets; j++) sum[j].fill(0.f);
        const float* base = r.in + r.base[list] * kLanes;
        const uint16_t* end = origin + r.starts[list + 1];
        for (; at + 4 <= end; at += 4, value += 4) {
            if constexpr (kVectors <= 4) {  // with more, the lists pass slowly enough for the processor to look ahead
                prefetch_weights(value, 1024);
                prefetch_weights(at, 512);
            }
            uint64_t offsets;
            memcpy(&offsets, at, 8);
            __m512 values = _mm512_castps128_ps512(_mm_loadu_ps(value));
            RP_UNROLL for (int j = 0; j < 4; j++) {
                F16 v = reinterpret_cast<F16>(_mm512_maskz_permutexvar_ps(0xffff, lane[j], values));
                sum[j % kSets].fma(v, base + ((offsets >> (16 * j)) & 0xffff) * kLanes);
            }
        }
        for (; at < end; at++, value++) sum[0].fma(of16(*value), base + int64_t(*at) * kLanes);
        RP_UNROLL for (int j = 1; j < kSets; j++) sum[0].add(sum[j]);
        if (out) {
            store_result<N>(r, sum[0], res, out);
            out += r.out_chan;
            if (res) res += r.res_chan;
        } else {
            sum[0].store(partial);
        }
        partial += N * kLanes;
    }
}

// Four output channels that share a list.
template <int N>
void conv_wide4(const Run& r) {
    constexpr int W = 4;
    const float *value = r.values, *bias = r.bias, *res = r.res;
    const uint16_t *at = r.offsets, *origin = at - r.starts[0];
    float *partial = r.partial, *out = r.out;
    for (int64_t list = 0; list < r.lists; list++) {
        Tile<N> sum[W];
        RP_UNROLL for (int w = 0; w < W; w++) {
            if (bias)
                sum[w].fill(bias[w]);
            else
                sum[w].load(partial + w * N * kLanes);
        }
        if (bias) bias += W;
        const float* base = r.in + r.base[list] * kLanes;
        for (const uint16_t* end = origin + r.starts[list + 1]; at < end; at++, value += W) {
            prefetch_weights(value, 2048);
            Tile<N> x;
            x.load(base + int64_t(*at) * kLanes);
            RP_UNROLL for (int w = 0; w < W; w++) sum[w].fma(of16(value[w]), x);
        }
        RP_UNROLL for (int w = 0; w < W; w++) {
            if (out)
                store_result<N>(r, sum[w], res ? res + w * r.res_chan : nullptr, out + w * r.out_chan);
            else
                sum[w].store(partial + w * N * kLanes);
        }
        if (out) out += W * r.out_chan;
        if (res) res += W * r.res_chan;
        partial += W * N * kLanes;
    }
}

static const RunKernel kWide1[16] = {conv_wide1<1>, conv_wide1<2>, conv_wide1<3>, conv_wide1<4>,
                                     conv_wide1<5>, conv_wide1<6>, conv_wide1<7>, conv_wide1<8>,
                                     conv_wide1<9>, conv_wide1<10>, conv_wide1<11>, conv_wide1<12>,
                                     conv_wide1<13>, conv_wide1<14>, conv_wide1<15>, conv_wide1<16>};
static const RunKernel kWide4[12] = {conv_wide4<1>, conv_wide4<2>, conv_wide4<3>, conv_wide4<4>, conv_wide4<5>,
                                     conv_wide4<6>, conv_wide4<7>, conv_wide4<8>, conv_wide4<9>, conv_wide4<10>,
                                     conv_wide4<11>, conv_wide4<12>};

}  // namespace
}  // namespace rankprune
#endif
