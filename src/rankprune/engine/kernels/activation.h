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

static inline Vec erf(Vec x) {  // Abramowitz and Stegun 7.1.26, absolute error below 2e-7
    Vec a = max(x, zero() - x);
    Vec t = Vec::of(1.f) / (Vec::of(1.f) + Vec::of(0.3275911f) * a);
    Vec p = Vec::of(1.061405429f);
    p = p * t + Vec::of(-1.453152027f);
    p = p * t + Vec::of(1.421413741f);
    p = p * t + Vec::of(-0.284496736f);
    p = p * t + Vec::of(0.254829592f);
    Vec y = Vec::of(1.f) - p * t * exp(zero() - a * a);
    return select_negative(x, zero() - y, y);
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
        case kGelu: return Vec::of(0.5f) * x * (Vec::of(1.f) + erf(x * Vec::of(0.70710678f)));
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
