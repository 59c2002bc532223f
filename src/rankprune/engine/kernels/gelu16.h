// GELU of 16 lanes with AVX-512, which can look up 32 numbers in registers: half the time of a division.
#pragma once
#include "vec16.h"

#if defined(__AVX512F__)
namespace rankprune {
namespace {

// Phi(-u) for 0 <= u <= 30.5 / 5.75 as a cubic of t = 5.75 u - i in each of 32 intervals around the whole numbers i:
// minimax fits within 1.6e-7. The last interval is 0, so that x Phi(x) is -0 for large negative x and NaN at -inf.
constexpr float kPhiStep = 5.75f;
alignas(64) static const float kPhi[4][32] = {
    {0.5f, 0.430966973f, 0.363985509f, 0.300926149f, 0.243323505f, 0.192269191f, 0.14836356f, 0.111727789f,
      0.0820666477f, 0.0587660037f, 0.0410059094f, 0.0278712194f, 0.0184459947f, 0.0118836239f, 0.00745032588f,
      0.00454436289f, 0.0026961572f, 0.00155562605f, 0.000872719917f, 0.000475974957f, 0.000252330385f,
      0.000130009139f, 6.50946458e-05f, 3.16691658e-05f, 1.49694215e-05f, 6.87403053e-06f, 3.06633933e-06f,
      1.32861328e-06f, 5.59134946e-07f, 2.28531874e-07f, 9.07117865e-08f, 0.f},
    {-0.069381237f, -0.0683398694f, -0.0653086752f, -0.0605524965f, -0.0544700399f, -0.0475387573f, -0.0402533822f,
      -0.033069022f, -0.0263575334f, -0.0203822721f, -0.0152920131f, -0.0111311842f, -0.00786108058f, -0.0053862622f,
      -0.0035806098f, -0.00230935519f, -0.00144506944f, -0.000877305574f, -0.000516746077f, -0.000295302831f,
      -0.000163727673f, -8.80725565e-05f, -4.59645562e-05f, -2.32739167e-05f, -1.14335144e-05f, -5.44946442e-06f,
      -2.51994857e-06f, -1.13055899e-06f, -4.92105698e-07f, -2.07819909e-07f, -8.51489759e-08f, 0.f},
    {0.f, 0.00103156536f, 0.00197173189f, 0.00274246768f, 0.0032897559f, 0.0035895342f, 0.00364808342f,
      0.00349734072f, 0.00318667106f, 0.0027731806f, 0.00231261831f, 0.00185245497f, 0.00142780028f, 0.00106033171f,
      0.000759485585f, 0.00052511791f, 0.000350703835f, 0.000226362958f, 0.000141268625f, 8.52755547e-05f,
      4.98057598e-05f, 2.81532375e-05f, 1.54053687e-05f, 8.16203647e-06f, 4.18778154e-06f, 2.08111328e-06f,
      1.00182729e-06f, 4.67226926e-07f, 2.11128821e-07f, 9.24471877e-08f, 3.92287021e-08f, 0.f},
    {0.000349252659f, 0.000333528995f, 0.000288961746f, 0.000221902796f, 0.000141650991f, 5.85687667e-05f,
      -1.77587135e-05f, -8.00071211e-05f, -0.000123961057f, -0.000148640436f, -0.000155825022f, -0.00014906541f,
      -0.000132871442f, -0.000111612055f, -8.8978195e-05f, -6.7637513e-05f, -4.91872124e-05f, -3.43021384e-05f,
      -2.29817288e-05f, -1.48131594e-05f, -9.19603372e-06f, -5.50341656e-06f, -3.17734271e-06f, -1.7707705e-06f,
      -9.53128847e-07f, -4.95704569e-07f, -2.49195466e-07f, -1.21128068e-07f, -5.69456482e-08f, -2.5899757e-08f,
      -1.13984537e-08f, 0.f},
};

static inline __m512 look_up(__m512i index, const float* table) {
    return _mm512_permutex2var_ps(_mm512_load_ps(table), index, _mm512_load_ps(table + 16));
}

static inline Vec16 gelu(Vec16 x) {
    const Vec16 u = min(Vec16::of(31.4f), magnitude(x) * Vec16::of(kPhiStep));
    const Vec16 shift = Vec16::of(8388608.f);  // 2^23: adding it rounds, and leaves the whole number in the lowest bits
    const Vec16 i = u + shift, t = u - (i - shift);
    const __m512i index = _mm512_castps_si512(i.v);
    Vec16 p{look_up(index, kPhi[3])};
    p = p * t + Vec16{look_up(index, kPhi[2])};
    p = p * t + Vec16{look_up(index, kPhi[1])};
    p = p * t + Vec16{look_up(index, kPhi[0])};
    return x * Vec16{x.v < 0 ? p.v : (Vec16::of(1.f) - p).v};
}

}  // namespace
}  // namespace rankprune
#endif
