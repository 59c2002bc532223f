// Sixteen floats in one register of AVX-512, with the operations of Vec that products and softmax need.
#pragma once
#include "vec.h"

#if defined(__AVX512F__)
#include <immintrin.h>

namespace rankprune {
namespace {

struct Vec16 {
    static constexpr int kFloats = 16;
    __m512 v;
    static inline Vec16 load(const float* p) { return {_mm512_loadu_ps(p)}; }  // two rows need not begin a cache line
    static inline Vec16 loadu(const float* p) { return {_mm512_loadu_ps(p)}; }
    static inline Vec16 of(float x) { return {_mm512_set1_ps(x)}; }
    inline void store(float* p) const { _mm512_storeu_ps(p, v); }
    inline void storeu(float* p) const { _mm512_storeu_ps(p, v); }
    inline void fma(Vec16 a, Vec16 b) { v += a.v * b.v; }
};
#define RP_OP(op) static inline Vec16 operator op(Vec16 a, Vec16 b) { return {a.v op b.v}; }
RP_OP(+) RP_OP(-) RP_OP(*) RP_OP(/)
#undef RP_OP
static inline Vec16 max(Vec16 a, Vec16 b) { return {a.v > b.v ? a.v : b.v}; }
static inline Vec16 min(Vec16 a, Vec16 b) { return {a.v < b.v ? a.v : b.v}; }
static inline Vec16 magnitude(Vec16 x) { return {_mm512_abs_ps(x.v)}; }
static inline Vec16 square_root(Vec16 x) { return {_mm512_maskz_sqrt_ps(0xffff, x.v)}; }
static inline Vec16 keep_nan(Vec16 x, Vec16 y) { return {x.v == x.v ? y.v : x.v}; }

}  // namespace
}  // namespace rankprune
#endif
