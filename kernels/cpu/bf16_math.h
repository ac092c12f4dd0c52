// BF16 dot products and conversions of AVX-512 for kernels/cpu/bf16_attend.cc, the only file that
// includes this.
#pragma once

#include "kernels/cpu/avx512_math.h"

#define TRIBUTARY_BF16_BEGIN TRIBUTARY_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#define TRIBUTARY_BF16_END TRIBUTARY_TARGET_END

TRIBUTARY_BF16_BEGIN
namespace tributary::cpu::bf16_detail {

/// acc + a[2i] b[2i] + a[2i + 1] b[2i + 1] for every lane i, products exact.
[[gnu::always_inline]] inline F32 add_dot(F32 acc, Words a, Words b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/// Weights of two cache rows, rounded to bf16, as the pairs that the second product multiplies.
[[gnu::always_inline]] inline Words pair_weights(F32 first, F32 second) {
  // To nearest even. Both halves end up side by side: word i of the result holds element i of each.
  const auto halves = (Words)_mm512_cvtne2ps_pbh(second, first);
  const Words order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                       23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}

}  // namespace tributary::cpu::bf16_detail
TRIBUTARY_BF16_END
