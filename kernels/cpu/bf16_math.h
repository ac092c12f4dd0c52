// AVX-512 with BF16 dot products, by intrinsics: Highway 1.0 has no target for it. The vectors,
// exp and log of kernels/cpu/bf16_attend.cc, the only file that includes this.
//
// Everything that uses the instructions stands between TRIBUTARY_BF16_BEGIN and _END. Those set the
// target for single functions, where a compiler flag would also reach what the file shares with
// others (inline functions of the library, of which the linker keeps one copy).
#pragma once

// GCC's own intrinsics start from undefined vectors (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define TRIBUTARY_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TRIBUTARY_BF16_BEGIN                                                    \
  TRIBUTARY_PRAGMA(clang attribute push(                                        \
      __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), \
      apply_to = function))
#define TRIBUTARY_BF16_END TRIBUTARY_PRAGMA(clang attribute pop)
#define TRIBUTARY_UNROLL TRIBUTARY_PRAGMA(clang loop unroll(full))
#else
#define TRIBUTARY_BF16_BEGIN         \
  TRIBUTARY_PRAGMA(GCC push_options) \
  TRIBUTARY_PRAGMA(GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))
#define TRIBUTARY_BF16_END TRIBUTARY_PRAGMA(GCC pop_options)
#define TRIBUTARY_UNROLL TRIBUTARY_PRAGMA(GCC unroll 32)
#endif

TRIBUTARY_BF16_BEGIN
namespace tributary::cpu::bf16_detail {

/// Floats, or pairs of bf16, in a vector.
inline constexpr std::size_t kLanes = 16;

using F32 = __m512;
using Words = __m512i;  // 16 words of 32 bits: pairs of bf16, the first in the lower half

/// acc + a[2i] b[2i] + a[2i + 1] b[2i + 1] for every lane i, products exact.
[[gnu::always_inline]] inline F32 add_dot(F32 acc, Words a, Words b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/// exp(x) for x <= 0, within 2 ulp; exactly 1 at 0 and exactly 0 below the logarithm of the
/// smallest normal number and at -inf. NaN gives NaN. The series is that of vector_math-inl.h.
[[gnu::always_inline]] inline F32 exp_not_positive(F32 x) {
  const F32 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  F32 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  F32 p = _mm512_set1_ps(1.0F / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5F));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r);
  p = _mm512_add_ps(p, _mm512_set1_ps(1.0F));
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33654F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, p, n);
}

/// Natural logarithm of positive, normal, finite x, within 2 ulp of the result or 2^-24, whichever
/// is larger; exactly 0 at 1. NaN gives NaN. The series is that of vector_math-inl.h.
[[gnu::always_inline]] inline F32 log_positive(F32 x) {
  const Words sqrt_half = _mm512_set1_epi32(0x3f3504f3);
  const Words shifted = _mm512_sub_epi32(_mm512_castps_si512(x), sqrt_half);
  const F32 n = _mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 23));
  const Words mantissa =
      _mm512_add_epi32(_mm512_and_si512(shifted, _mm512_set1_epi32(0x007fffff)), sqrt_half);
  const F32 f = _mm512_sub_ps(_mm512_castsi512_ps(mantissa), _mm512_set1_ps(1.0F));
  const F32 s = _mm512_div_ps(f, _mm512_add_ps(f, _mm512_set1_ps(2.0F)));
  const F32 s2 = _mm512_mul_ps(s, s);
  F32 p = _mm512_set1_ps(2.0F / 9);
  p = _mm512_fmadd_ps(p, s2, _mm512_set1_ps(2.0F / 7));
  p = _mm512_fmadd_ps(p, s2, _mm512_set1_ps(2.0F / 5));
  p = _mm512_fmadd_ps(p, s2, _mm512_set1_ps(2.0F / 3));
  const F32 tail = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F),
                                    _mm512_mul_ps(s, _mm512_fnmadd_ps(s2, p, f)));
  const F32 result =
      _mm512_add_ps(_mm512_sub_ps(f, tail), _mm512_mul_ps(n, _mm512_set1_ps(0.693359375F)));
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), result, x);
}

/// Weights of two cache rows, rounded to bf16, as the pairs that the second product multiplies.
[[gnu::always_inline]] inline Words pair_weights(F32 first, F32 second) {
  // To nearest even. Both halves come out side by side: word i of the result takes element i of
  // either.
  const auto halves = (Words)_mm512_cvtne2ps_pbh(second, first);
  const Words order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                       23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}

/// 16 x 16 words, transposed in place.
[[gnu::always_inline]] inline void transpose(Words (&v)[kLanes]) {
  Words t[kLanes];
  TRIBUTARY_UNROLL
  for (std::size_t i = 0; i < kLanes; i += 4) {
    const Words a = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    const Words b = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    const Words c = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
    const Words d = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  // t[4 i + j] holds, in its 128-bit quarter q, column 4 q + j of rows 4 i to 4 i + 3.
  TRIBUTARY_UNROLL
  for (std::size_t j = 0; j < 4; ++j) {
    const Words low01 = _mm512_shuffle_i32x4(t[j], t[4 + j], 0x88);
    const Words high01 = _mm512_shuffle_i32x4(t[j], t[4 + j], 0xdd);
    const Words low23 = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0x88);
    const Words high23 = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0xdd);
    v[j] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    v[8 + j] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    v[4 + j] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    v[12 + j] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

}  // namespace tributary::cpu::bf16_detail
TRIBUTARY_BF16_END
