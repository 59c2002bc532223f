// Activations of eight lanes. exp: range reduction by ln 2 and a degree-6 polynomial (about 2 ulp).
#pragma once
#include "api.h"
#include "vec.h"

namespace rankprune {
namespace {

static inline Vec exp(Vec x) {
    Vec c = max(min(x, Vec::of(88.f)), Vec::of(-87.f));
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
    return keep_nan(x, p * power_of_two(n));
}

static inline Vec sigmoid(Vec x) { return Vec::of(1.f) / (Vec::of(1.f) + exp(zero() - x)); }

// The normal distribution function as 1/2 + x P(x^2) / Q(x^2), a minimax fit on [-5.6, 5.6]: x Phi(x) within 3e-8 of
// the largest |x| there, before rounding. One division and no exp: half the time of erf by way of exp.
static inline Vec normal(Vec x) {
    Vec c = min(Vec::of(5.6f), max(Vec::of(-5.6f), x)), u = c * c;
    Vec p = Vec::of(2.1710381e-08f), q = Vec::of(1.18514617e-06f);
    p = p * u + Vec::of(6.59056332e-06f), q = q * u + Vec::of(8.10111815e-05f);
    p = p * u + Vec::of(0.000190156308f), q = q * u + Vec::of(0.00200336101f);
    p = p * u + Vec::of(0.00480542658f), q = q * u + Vec::of(0.0298040286f);
    p = p * u + Vec::of(0.03584731f), q = q * u + Vec::of(0.256518632f);
    p = p * u + Vec::of(0.398941904f), q = q * u + Vec::of(1.f);
    return Vec::of(0.5f) + c * p / q;
}

// In max and min the constant stands first: NaN in x comes through, as it does in torch.
static inline Vec relu6(Vec x) { return min(Vec::of(6.f), max(zero(), x)); }
static inline Vec hardsigmoid(Vec x) { return relu6(x + Vec::of(3.f)) * Vec::of(1.f / 6); }

static inline Vec activate(Vec x, int64_t kind) {
    switch (kind) {
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
        default: return x;
    }
}

}  // namespace
}  // namespace rankprune
