// exp and log on vectors of floats, and the sum of a vector, for every instruction set. The error
// bounds hold with and without fused multiply-add and are tested against double over the whole
// domain.

// Highway includes each -inl header once per instruction set; this guard flips with it.
#if defined(TRIBUTARY_KERNELS_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_KERNELS_CPU_VECTOR_MATH_INL_H_
#undef TRIBUTARY_KERNELS_CPU_VECTOR_MATH_INL_H_
#else
#define TRIBUTARY_KERNELS_CPU_VECTOR_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ln 2 in two parts. The high one, 355/512, has 9 significant bits, so that its product with an
// integer below 2^15 is exact and x - n ln 2 loses nothing even without fused multiply-add.
inline constexpr float kLn2High = 0.693359375F;
inline constexpr float kLn2Low = -2.12194440e-4F;
// Below this exp(x) is less than 2^-126, the smallest normal number; it becomes 0.
inline constexpr float kExpUnderflow = -87.33654F;

/// exp(x) for x <= 0, within 2 ulp; exactly 1 at 0 and exactly 0 below kExpUnderflow (the true
/// value is then less than 2^-126) and at -inf. NaN gives NaN.
///
/// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; exp(r) by its Taylor series up to
/// r^7, whose remainder is below r^8 / 8! = 5.2e-9, a tenth of an ulp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_not_positive(D d, V x) {
  const hn::Rebind<std::int32_t, D> di;
  const V floor = hn::Set(d, kExpUnderflow);
  const auto n = hn::NearestInt(hn::Mul(hn::Max(x, floor), hn::Set(d, 1.44269504F)));
  const V nf = hn::ConvertTo(d, n);
  const V r = hn::NegMulAdd(nf, hn::Set(d, kLn2Low), hn::NegMulAdd(nf, hn::Set(d, kLn2High), x));
  V p = hn::Set(d, 1.0F / 5040);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  p = hn::MulAdd(hn::Mul(p, r), r, r);
  p = hn::Add(p, hn::Set(d, 1.0F));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::IfThenZeroElse(hn::Lt(x, floor), hn::Mul(p, power));
}

/// Natural logarithm of positive, normal, finite x, within 2 ulp of the result or 2^-24, whichever
/// is larger; exactly 0 at 1. NaN gives NaN.
///
/// x = 2^n (1 + f), 1 + f in [0.7071, 1.4143). log(1 + f) = 2 atanh(s), s = f / (2 + f),
/// |s| <= 0.1716; the series up to s^9 leaves 2 s^11 / 11 < 7e-10 = 2.3e-9 of the result.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_positive(D d, V x) {
  const hn::Rebind<std::int32_t, D> di;
  // Adding 1 - sqrt(1/2) to the bits moves the border between exponents from 1 to sqrt(1/2).
  const auto sqrt_half = hn::Set(di, 0x3f3504f3);
  const auto shifted = hn::Sub(hn::BitCast(di, x), sqrt_half);
  const V n = hn::ConvertTo(d, hn::ShiftRight<23>(shifted));
  const auto mantissa = hn::Add(hn::And(shifted, hn::Set(di, 0x007fffff)), sqrt_half);
  const V f = hn::Sub(hn::BitCast(d, mantissa), hn::Set(d, 1.0F));
  const V s = hn::Div(f, hn::Add(f, hn::Set(d, 2.0F)));
  const V s2 = hn::Mul(s, s);
  V p = hn::Set(d, 2.0F / 9);
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0F / 7));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0F / 5));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0F / 3));
  // 2 s = f - s f: the exact f carries the leading digits.
  const V tail = hn::NegMulAdd(n, hn::Set(d, kLn2Low), hn::Mul(s, hn::NegMulAdd(s2, p, f)));
  const V result = hn::Add(hn::Sub(f, tail), hn::Mul(n, hn::Set(d, kLn2High)));
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

/// The sum of all lanes: the upper half is added to the lower one until one lane is left. The order
/// decides bits, and the order of hn::SumOfLanes differs between versions of Highway.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::TFromD<D> sum_of_lanes(D d, V v) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (std::size_t half = hn::Lanes(d) / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
