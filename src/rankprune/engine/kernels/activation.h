// Activations of eight lanes. exp: range reduction by ln 2 and a degree-6 polynomial (about 2 ulp); exactly 0 below -87
// and infinite above 88.37, so that x sigmoid(x) and the like are -0 for large negative x and NaN at -inf, as in torch.
#pragma once
#include "checker.h"
#include "gelu16.h"

namespace rankprune {
namespace {

static inline Vec exp(Vec x) {
    Vec least = Vec::of(-87.f), most = Vec::of(88.37f);
    Vec c = max(min(x, most), least);
    Vec shift = Vec::of(12582912.f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    Vec n = (c * Vec::of(1.44269504f) + shift) - shift;
    Vec r = c - n * Vec::of(0.693359375f) - n * Vec::of(-2.12194440e-4f);  // ln 2 in two parts (Cody and Waite)
    Vec p = Vec::of(1.f / 720);
    p = p * r + Vec::of(1.f / 120);
    p = p * r + Vec::of(1.f / 24);
    p = p * r + Vec::of(1.f / 6);
    p = p * r + Vec::of(0.5f);
    p = p * r + Vec::of(1.f);
    p = p * r + Vec::of(1.f);
    Vec above = select_negative(most - x, Vec::of(__builtin_inff()), keep_nan(x, p * power_of_two(n)));
    return select_negative(x - least, zero(), above);
}

// 2^r for -1/2 <= r <= 1/2, within 7.5e-8 of it.
template <class V>
static inline V power_of_fraction(V r) {
    V p = V::of(0.00132764725f);
    p = p * r + V::of(0.00967554096f);
    p = p * r + V::of(0.0555071309f);
    p = p * r + V::of(0.240221202f);
    p = p * r + V::of(0.693146944f);
    return p * r + V::of(1.00000012f);
}

// exp of x <= 0 or NaN, for softmax: 0 where the result would be below 2^-126.
static inline Vec exp_to_one(Vec x) {
    Vec t = x * Vec::of(1.44269504f), least = Vec::of(-126.f), c = max(t, least);  // -126 for NaN
    Vec shift = Vec::of(12582912.f), n = (c + shift) - shift;                      // as in exp
    return select_negative(t - least, zero(), keep_nan(x, power_of_fraction(c - n) * power_of_two(n)));
}
#if defined(__AVX512F__)
static inline Vec16 exp_to_one(Vec16 x) {
    const __m512 t = (x * Vec16::of(1.44269504f)).v;
    const __mmask16 kept = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.f), _CMP_NLT_UQ);  // NaN too
    const __m512 n = _mm512_maskz_roundscale_ps(0xffff, t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return {_mm512_maskz_scalef_ps(kept, power_of_fraction(Vec16{t - n}).v, n)};
}
#endif

static inline Vec sigmoid(Vec x) { return Vec::of(1.f) / (Vec::of(1.f) + exp(zero() - x)); }

// The normal distribution function as 1/2 + x P(x^2) / Q(x^2), a minimax fit on [-5.6, 5.6]: x Phi(x) within 3e-8 of
// the largest |x| there, before rounding; 0 below. With one division and no exp it takes half the time of erf via exp.
static inline Vec normal(Vec x) {
    Vec c = min(Vec::of(5.6f), max(Vec::of(-5.6f), x)), u = c * c;
    Vec p = Vec::of(2.1710381e-08f), q = Vec::of(1.18514617e-06f);
    p = p * u + Vec::of(6.59056332e-06f), q = q * u + Vec::of(8.10111815e-05f);
    p = p * u + Vec::of(0.000190156308f), q = q * u + Vec::of(0.00200336101f);
    p = p * u + Vec::of(0.00480542658f), q = q * u + Vec::of(0.0298040286f);
    p = p * u + Vec::of(0.03584731f), q = q * u + Vec::of(0.256518632f);
    p = p * u + Vec::of(0.398941904f), q = q * u + Vec::of(1.f);
    return select_negative(x + Vec::of(5.6f), zero(), Vec::of(0.5f) + c * p / q);
}

// The constant is the first operand of max and min, so that NaN in x is propagated, as in torch.
static inline Vec relu6(Vec x) { return min(Vec::of(6.f), max(zero(), x)); }
static inline Vec hardsigmoid(Vec x) { return relu6(x + Vec::of(3.f)) * Vec::of(1.f / 6); }

// tanh(x) = 1 - 2 / (exp(2x) + 1), whose relative error is large near 0, where a Taylor polynomial is used.
static inline Vec tanh(Vec x) {
    Vec u = x * x, p = Vec::of(-1382.f / 155925);
    p = p * u + Vec::of(62.f / 2835);
    p = p * u + Vec::of(-17.f / 315);
    p = p * u + Vec::of(2.f / 15);
    p = p * u + Vec::of(-1.f / 3);
    p = p * u + Vec::of(1.f);
    Vec large = Vec::of(1.f) - Vec::of(2.f) / (exp(x + x) + Vec::of(1.f));
    return select_negative(u - Vec::of(0.16f), x * p, large);
}

// exp(x) - 1, with a Taylor polynomial near 0 for the same reason.
static inline Vec expm1(Vec x) {
    Vec p = Vec::of(1.f / 5040);
    p = p * x + Vec::of(1.f / 720);
    p = p * x + Vec::of(1.f / 120);
    p = p * x + Vec::of(1.f / 24);
    p = p * x + Vec::of(1.f / 6);
    p = p * x + Vec::of(0.5f);
    p = p * x + Vec::of(1.f);
    return select_negative(x * x - Vec::of(0.16f), x * p, exp(x) - Vec::of(1.f));
}

// log(1 + z) for 0 <= z <= 1, as 2 atanh(z / (2 + z)).
static inline Vec log1p_unit(Vec z) {
    Vec s = z / (Vec::of(2.f) + z), u = s * s, p = Vec::of(1.f / 15);
    p = p * u + Vec::of(1.f / 13);
    p = p * u + Vec::of(1.f / 11);
    p = p * u + Vec::of(1.f / 9);
    p = p * u + Vec::of(1.f / 7);
    p = p * u + Vec::of(1.f / 5);
    p = p * u + Vec::of(1.f / 3);
    p = p * u + Vec::of(1.f);
    return (s + s) * p;
}

static inline Vec magnitude(Vec x) { return select_negative(x, zero() - x, x); }

static inline Vec softplus(Vec x) { return max(zero(), x) + log1p_unit(exp(zero() - magnitude(x))); }

// x tanh(softplus(x)) = x n / (n + 2) with n = e^x (e^x + 2); from 20 on it is x.
static inline Vec mish(Vec x) {
    Vec e = exp(min(Vec::of(20.f), x)), n = e * (e + Vec::of(2.f));
    return x * (n / (n + Vec::of(2.f)));
}

static inline Vec square_root(Vec x) {
    alignas(32) float t[kLanes];
    x.store(t);
    for (float& v : t) v = __builtin_sqrtf(v);
    return Vec::load(t);
}

static inline Vec activate(Vec x, const Active& how) {
    Vec a = Vec::of(float(how.first)), b = Vec::of(float(how.second));
    switch (how.kind) {
        case kRelu: return max(zero(), x);
        case kRelu6: return relu6(x);
        case kHardswish: return x * hardsigmoid(x);
        case kHardsigmoid: return hardsigmoid(x);
        case kGelu: return x * normal(x);
        case kGeluTanh: {  // 0.5 (1 + tanh u) = sigmoid(2u)
            Vec u = Vec::of(0.79788456f) * (x + Vec::of(0.044715f) * x * x * x);
            return x * sigmoid(u + u);
        }
        case kSigmoid: return sigmoid(x);
        case kSilu: return x * sigmoid(x);
        case kTanh: return tanh(x);
        case kLeakyRelu: return select_negative(x, x * a, x);
        case kElu: return select_negative(x, a * expm1(b * x), x);
        case kMish: return mish(x);
        case kSoftplus: return select_negative(b - a * x, x, softplus(a * x) / a);
        case kClamp: return min(b, max(a, x));
        case kExp: return exp(x);
        case kSqrt: return square_root(x);
        case kAbs: return magnitude(x);
        default: return x;
    }
}

// Activates `count` vectors of 16 floats in place, each `stride` floats after the one before.
// Not inlined, because many kernels call it.
__attribute__((noinline)) static void activate_vectors(float* p, int64_t count, int64_t stride, const Active& how) {
#if defined(__AVX512F__)
    if (how.kind == kGelu) {
        for (int64_t i = 0; i < count; i++, p += stride) gelu(Vec16::load(p)).store(p);
        return;
    }
#endif
    for (int64_t i = 0; i < count; i++, p += stride)
        for (int64_t lane = 0; lane < 2 * kLanes; lane += kLanes)
            activate(Vec::load(p + lane), how).store(p + lane);
}

}  // namespace
}  // namespace rankprune
