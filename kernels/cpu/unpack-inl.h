// Converts rows of bf16 or fp32 from the cache into the fp32 panels that products read: transposed
// (lanes are rows) for scores, row by row for values. Also plain conversion.

#if defined(TRIBUTARY_KERNELS_CPU_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_KERNELS_CPU_UNPACK_INL_H_
#undef TRIBUTARY_KERNELS_CPU_UNPACK_INL_H_
#else
#define TRIBUTARY_KERNELS_CPU_UNPACK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "kernels/cpu/kernel_table.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float widen(float value) {
  return value;
}
HWY_INLINE float widen(bf16 value) {
  return to_float(value);
}

template <class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const bf16* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto halves = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, halves)));
}

template <typename T>
HWY_INLINE void widen_row(const T* from, std::size_t count, float* to) {
  const hn::ScalableTag<float> d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(load_widened(d, from + i), d, to + i);
  }
  for (; i < count; ++i) to[i] = widen(from[i]);
}

/// values[c / kPanel][row][c % kPanel] = row[c] for `rows` rows. Columns from `width` to the end of
/// the last panel keep their old contents: they only affect output columns that nobody reads.
template <typename T>
HWY_INLINE void unpack_values(const T* first, std::size_t stride, std::size_t rows,
                              std::size_t width, float* HWY_RESTRICT values) {
  for (std::size_t row = 0; row < rows; ++row) {
    const T* from = first + row * stride;
    for (std::size_t c = 0; c < width; c += kPanel) {
      widen_row(from + c, std::min(kPanel, width - c), values + c * kBlockRows + row * kPanel);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR

using Lane4 = hn::FixedTag<std::uint32_t, 4>;

/// Four vectors of four 32-bit words, transposed in place.
HWY_INLINE void transpose(hn::Vec<Lane4> (&v)[4]) {
  const Lane4 d;
  const auto low01 = hn::InterleaveLower(d, v[0], v[1]);
  const auto low23 = hn::InterleaveLower(d, v[2], v[3]);
  const auto high01 = hn::InterleaveUpper(d, v[0], v[1]);
  const auto high23 = hn::InterleaveUpper(d, v[2], v[3]);
  v[0] = hn::ConcatLowerLower(d, low23, low01);
  v[1] = hn::ConcatUpperUpper(d, low23, low01);
  v[2] = hn::ConcatLowerLower(d, high23, high01);
  v[3] = hn::ConcatUpperUpper(d, high23, high01);
}

/// Columns that one transpose of four 16-byte pieces yields.
template <typename T>
inline constexpr std::size_t kColumnsAtOnce = 16 / sizeof(T);

// to[column * kBlockRows + 0..3] = the four rows of `v`.
HWY_INLINE void store_columns(const hn::Vec<Lane4> (&v)[4], const float* /*type*/, float* to) {
  const hn::FixedTag<float, 4> d;
  for (std::size_t i = 0; i < 4; ++i) hn::StoreU(hn::BitCast(d, v[i]), d, to + i * kBlockRows);
}
// A word holds two neighbouring columns, the first in its lower half. bf16 pairs are transposed
// first, with half the shuffles, and widened afterwards.
HWY_INLINE void store_columns(const hn::Vec<Lane4> (&v)[4], const bf16* /*type*/, float* to) {
  const Lane4 du;
  const hn::FixedTag<float, 4> d;
  for (std::size_t i = 0; i < 4; ++i) {
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(v[i])), d, to + 2 * i * kBlockRows);
    hn::StoreU(hn::BitCast(d, hn::And(v[i], hn::Set(du, 0xffff0000U))), d,
               to + (2 * i + 1) * kBlockRows);
  }
}

#endif

/// keys[c * kBlockRows + row] = row[c] for `rows` rows; lanes of rows that do not exist keep what
/// was there or repeat the last row: their scores are masked.
template <typename T>
HWY_INLINE void unpack_keys(const T* first, std::size_t stride, std::size_t rows, std::size_t depth,
                            float* HWY_RESTRICT keys) {
  std::size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  const Lane4 d;
  // Columns in the outer loop: the 8 (or 4) output lines are filled while the rows' lines are still
  // in the first-level cache for the next columns.
  for (; c + kColumnsAtOnce<T> <= depth; c += kColumnsAtOnce<T>) {
    for (std::size_t row = 0; row < rows; row += 4) {
      hn::Vec<Lane4> words[4];
      for (std::size_t i = 0; i < 4; ++i) {
        const T* from = first + std::min(row + i, rows - 1) * stride + c;
        words[i] = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(from));
      }
      transpose(words);
      store_columns(words, first, keys + c * kBlockRows + row);
    }
  }
#endif
  for (; c < depth; ++c) {
    for (std::size_t row = 0; row < rows; ++row) {
      keys[c * kBlockRows + row] = widen(first[row * stride + c]);
    }
  }
}

/// Rounds to nearest even, NaN to quiet NaN: exactly tributary::to_bf16.
template <class V>
HWY_INLINE void store_narrowed(V value, bf16* to) {
  using D = hn::DFromV<V>;
  const hn::Rebind<std::uint32_t, D> du;
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::BitCast(du, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto nearest = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x40));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  const auto result = hn::IfThenElse(is_nan, quiet, nearest);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, result)), d16, reinterpret_cast<std::uint16_t*>(to));
}

HWY_INLINE void narrow_row(const float* from, std::size_t count, bf16* to) {
  const hn::ScalableTag<float> d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    store_narrowed(hn::LoadU(d, from + i), to + i);
  }
  for (; i < count; ++i) to[i] = to_bf16(from[i]);
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
