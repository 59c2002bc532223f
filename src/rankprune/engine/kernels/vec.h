// Eight floats, from the compiler's vector extensions: one register with AVX, two of four lanes elsewhere.
#pragma once
#include <cstdint>
#include <cstring>

#define RP_UNROLL _Pragma("GCC unroll 32")

namespace rankprune {
namespace {

#if defined(__AVX__)
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));

struct Vec {
    static constexpr int kFloats = 8;
    F8 v;
    static inline Vec load(const float* p) { return {*reinterpret_cast<const F8*>(p)}; }
    static inline Vec loadu(const float* p) { Vec r; memcpy(&r.v, p, 32); return r; }
    static inline Vec of(float x) { return {F8{x, x, x, x, x, x, x, x}}; }
    inline void store(float* p) const { *reinterpret_cast<F8*>(p) = v; }
    inline void storeu(float* p) const { memcpy(p, &v, 32); }
    inline void fma(Vec a, Vec b) { v += a.v * b.v; }
};
#define RP_OP(op) static inline Vec operator op(Vec a, Vec b) { return {a.v op b.v}; }
RP_OP(+) RP_OP(-) RP_OP(*) RP_OP(/)
#undef RP_OP
static inline Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
static inline Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
static inline Vec power_of_two(Vec n) {  // n must be integral
    I8 bits = (__builtin_convertvector(n.v, I8) + 127) << 23;
    Vec r; memcpy(&r.v, &bits, 32); return r;
}
static inline Vec select_negative(Vec x, Vec yes, Vec no) { return {x.v < 0 ? yes.v : no.v}; }
static inline Vec keep_nan(Vec x, Vec y) { return {x.v == x.v ? y.v : x.v}; }
static inline Vec even(Vec a, Vec b) { return {__builtin_shufflevector(a.v, b.v, 0, 2, 4, 6, 8, 10, 12, 14)}; }
static inline Vec odd(Vec a, Vec b) { return {__builtin_shufflevector(a.v, b.v, 1, 3, 5, 7, 9, 11, 13, 15)}; }
template <int S>
static inline Vec across(Vec a, Vec b) {  // lanes S .. S+7 of a followed by b
    return {__builtin_shufflevector(a.v, b.v, S, S + 1, S + 2, S + 3, S + 4, S + 5, S + 6, S + 7)};
}
// Lane i of row j becomes lane j of row i.
static inline void transpose(Vec r[8]) {
    F8 a[8], b[8];
    RP_UNROLL for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shufflevector(r[i].v, r[i + 1].v, 0, 8, 2, 10, 4, 12, 6, 14);
        a[i + 1] = __builtin_shufflevector(r[i].v, r[i + 1].v, 1, 9, 3, 11, 5, 13, 7, 15);
    }
    RP_UNROLL for (int i = 0; i < 8; i += 4)
        RP_UNROLL for (int j = 0; j < 2; j++) {
            b[i + j] = __builtin_shufflevector(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            b[i + j + 2] = __builtin_shufflevector(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    RP_UNROLL for (int j = 0; j < 4; j++) {
        r[j].v = __builtin_shufflevector(b[j], b[j + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[j + 4].v = __builtin_shufflevector(b[j], b[j + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
#else
typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

struct Vec {
    static constexpr int kFloats = 8;
    F4 lo, hi;
    static inline Vec load(const float* p) {
        return {*reinterpret_cast<const F4*>(p), *reinterpret_cast<const F4*>(p + 4)};
    }
    static inline Vec loadu(const float* p) { Vec r; memcpy(&r.lo, p, 16); memcpy(&r.hi, p + 4, 16); return r; }
    static inline Vec of(float x) { F4 f{x, x, x, x}; return {f, f}; }
    inline void store(float* p) const { *reinterpret_cast<F4*>(p) = lo; *reinterpret_cast<F4*>(p + 4) = hi; }
    inline void storeu(float* p) const { memcpy(p, &lo, 16); memcpy(p + 4, &hi, 16); }
    inline void fma(Vec a, Vec b) { lo += a.lo * b.lo; hi += a.hi * b.hi; }
};
#define RP_OP(op) static inline Vec operator op(Vec a, Vec b) { return {a.lo op b.lo, a.hi op b.hi}; }
RP_OP(+) RP_OP(-) RP_OP(*) RP_OP(/)
#undef RP_OP
static inline Vec max(Vec a, Vec b) { return {a.lo > b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi}; }
static inline Vec min(Vec a, Vec b) { return {a.lo < b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi}; }
static inline F4 power_of_two_4(F4 n) {
    I4 bits = (__builtin_convertvector(n, I4) + 127) << 23;
    F4 r; memcpy(&r, &bits, 16); return r;
}
static inline Vec power_of_two(Vec n) { return {power_of_two_4(n.lo), power_of_two_4(n.hi)}; }
static inline Vec select_negative(Vec x, Vec yes, Vec no) {
    return {x.lo < 0 ? yes.lo : no.lo, x.hi < 0 ? yes.hi : no.hi};
}
static inline Vec keep_nan(Vec x, Vec y) { return {x.lo == x.lo ? y.lo : x.lo, x.hi == x.hi ? y.hi : x.hi}; }
static inline Vec even(Vec a, Vec b) {
    return {__builtin_shufflevector(a.lo, a.hi, 0, 2, 4, 6), __builtin_shufflevector(b.lo, b.hi, 0, 2, 4, 6)};
}
static inline Vec odd(Vec a, Vec b) {
    return {__builtin_shufflevector(a.lo, a.hi, 1, 3, 5, 7), __builtin_shufflevector(b.lo, b.hi, 1, 3, 5, 7)};
}
template <int S>
static inline Vec across(Vec a, Vec b) {  // lanes S .. S+7 of a followed by b
    constexpr int R = S % 4;
    F4 from = S < 4 ? a.lo : a.hi, middle = S < 4 ? a.hi : b.lo, to = S < 4 ? b.lo : b.hi;
    return {__builtin_shufflevector(from, middle, R, R + 1, R + 2, R + 3),
            __builtin_shufflevector(middle, to, R, R + 1, R + 2, R + 3)};
}
static inline void transpose_4(F4& a, F4& b, F4& c, F4& d) {
    F4 p = __builtin_shufflevector(a, b, 0, 4, 2, 6), q = __builtin_shufflevector(a, b, 1, 5, 3, 7);
    F4 r = __builtin_shufflevector(c, d, 0, 4, 2, 6), s = __builtin_shufflevector(c, d, 1, 5, 3, 7);
    a = __builtin_shufflevector(p, r, 0, 1, 4, 5), b = __builtin_shufflevector(q, s, 0, 1, 4, 5);
    c = __builtin_shufflevector(p, r, 2, 3, 6, 7), d = __builtin_shufflevector(q, s, 2, 3, 6, 7);
}
// Lane i of row j becomes lane j of row i.
static inline void transpose(Vec r[8]) {
    transpose_4(r[0].lo, r[1].lo, r[2].lo, r[3].lo);
    transpose_4(r[4].hi, r[5].hi, r[6].hi, r[7].hi);
    transpose_4(r[0].hi, r[1].hi, r[2].hi, r[3].hi);
    transpose_4(r[4].lo, r[5].lo, r[6].lo, r[7].lo);
    RP_UNROLL for (int j = 0; j < 4; j++) {
        F4 t = r[j].hi;
        r[j].hi = r[j + 4].lo;
        r[j + 4].lo = t;
    }
}
#endif

// The first `count` lanes only.
static inline void store_some(Vec v, float* p, int64_t count) {
    if (count == 8) return v.storeu(p);
#if defined(__AVX512VL__)
    __builtin_ia32_storeups256_mask(p, v.v, static_cast<unsigned char>((1 << count) - 1));
#else
    alignas(32) float t[8];
    v.store(t);
    for (int64_t i = 0; i < count; i++) p[i] = t[i];
#endif
}
static inline Vec load_some(const float* p, int64_t count) {
    if (count == 8) return Vec::loadu(p);
#if defined(__AVX512VL__)
    return {__builtin_ia32_loadups256_mask(p, F8{}, static_cast<unsigned char>((1 << count) - 1))};
#else
    alignas(32) float t[8] = {};
    for (int64_t i = 0; i < count; i++) t[i] = p[i];
    return Vec::load(t);
#endif
}

static inline Vec zero() { return Vec::of(0.f); }
static inline float sum(Vec v) {
    alignas(32) float t[8];
    v.store(t);
    return ((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6]) + (t[3] + t[7]));
}
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace
}  // namespace rankprune
