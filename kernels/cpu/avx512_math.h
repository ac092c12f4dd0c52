// Vectors of AVX-512 in intrinsics, shared by the kernels that are not written with Highway (BF16
// dot products, tiles), since Highway 1.0 has no target for their instructions.
//
// All code that uses such instructions is between a pair like TRIBUTARY_AVX512_BEGIN and _END,
// which set the target for single functions. A compiler flag would also affect inline functions of
// the library, of which the linker keeps one copy for all files.
#pragma once

// GCC's own intrinsics start from undefined vectors (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define TRIBUTARY_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TRIBUTARY_TARGET_BEGIN(set) \
  TRIBUTARY_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define TRIBUTARY_TARGET_END TRIBUTARY_PRAGMA(clang attribute pop)
#define TRIBUTARY_UNROLL TRIBUTARY_PRAGMA(clang loop unroll(full))
#else
#define TRIBUTARY_TARGET_BEGIN(set)  \
  TRIBUTARY_PRAGMA(GCC push_options) \
  TRIBUTARY_PRAGMA(GCC target(set))
#define TRIBUTARY_TARGET_END TRIBUTARY_PRAGMA(GCC pop_options)
#define TRIBUTARY_UNROLL TRIBUTARY_PRAGMA(GCC unroll 32)
#endif
#define TRIBUTARY_AVX512_BEGIN TRIBUTARY_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl")
#define TRIBUTARY_AVX512_END TRIBUTARY_TARGET_END

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu {

/// Floats, or pairs of bf16, in a vector.
inline constexpr std::size_t kLanes = 16;

using F32 = __m512;
using Words = __m512i;  // 16 words of 32 bits: pairs of bf16, the first in the lower half

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

/// The 32 columns of a pair of rows that vpunpck[lh]wd of 16-bit elements left in two vectors, as
/// 32-bit sums, in order.
[[gnu::always_inline]] inline void order_columns(F32 low, F32 high, F32* first, F32* second) {
  const Words begin = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const Words end = _mm512_set_epi32(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8);
  *first = _mm512_permutex2var_ps(low, begin, high);
  *second = _mm512_permutex2var_ps(low, end, high);
}

/// The even columns of 32 and the odd ones, in order.
[[gnu::always_inline]] inline void alternate_columns(F32 even, F32 odd, F32* first, F32* second) {
  const Words begin = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const Words end = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  *first = _mm512_permutex2var_ps(even, begin, odd);
  *second = _mm512_permutex2var_ps(even, end, odd);
}

}  // namespace tributary::cpu
TRIBUTARY_AVX512_END
