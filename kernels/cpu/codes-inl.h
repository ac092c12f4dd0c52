// FP8 codes of latent rows to the bf16 values that kernels see: code x scale, rounded.

#if defined(TRIBUTARY_KERNELS_CPU_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_KERNELS_CPU_CODES_INL_H_
#undef TRIBUTARY_KERNELS_CPU_CODES_INL_H_
#else
#define TRIBUTARY_KERNELS_CPU_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/dtype.h"
#include "kernels/cpu/row_gather.h"
#include "kernels/cpu/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Codes from here on, without their sign, are normal numbers; the last one is NaN.
inline constexpr int kFirstNormalCode = 0x08, kNanCode = 0x7f;

/// For any scale.
HWY_INLINE void widen_codes_by_product(const std::uint8_t* codes, float scale, std::size_t count,
                                       bf16* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto code = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
    const auto size = hn::And(code, hn::Set(di, 0x7f));
    const auto sign = hn::ShiftLeft<24>(hn::Xor(code, size));
    const auto normal = hn::Add(hn::ShiftLeft<20>(size), hn::Set(di, 120 << 23));
    const auto small = hn::BitCast(di, hn::Mul(hn::ConvertTo(d, size), hn::Set(d, 0x1p-9F)));
    auto number = hn::IfThenElse(hn::Lt(size, hn::Set(di, kFirstNormalCode)), small, normal);
    number = hn::IfThenElse(hn::Eq(size, hn::Set(di, kNanCode)), hn::Set(di, 0x7fc00000), number);
    store_narrowed(hn::Mul(hn::BitCast(d, hn::Or(number, sign)), hn::Set(d, scale)), out + i);
  }
  for (; i < count; ++i) out[i] = to_bf16(f8_e4m3_to_float(codes[i]) * scale);
}

#if HWY_TARGET != HWY_SCALAR

/// For powers of two with which every product other than 0 is a normal number: the codes' own bits,
/// in another place, with an exponent added. The two bytes of all words are made apart, so that a
/// vector is as many codes as it has bytes.
class ExponentWidening {
 public:
  HWY_INLINE ExponentWidening()
      : order_(hn::SetTableIndices(d64_, kOrders[hn::Lanes(d64_) / 4])),
        not_zero_(hn::LoadDup128(d_, kNotZero)) {}

  /// From 2^-9 of the smallest code to 448 of the largest.
  [[nodiscard]] HWY_INLINE static bool serves(float scale) {
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    const auto exponent = static_cast<int>(bits >> 23) - 127;
    return (bits & 0x7fffffU) == 0 && exponent >= -126 + 9 && exponent <= 127 - 8;
  }

  /// Of `scale`; `count` is whole vectors.
  HWY_INLINE void widen(const std::uint8_t* codes, float scale, std::size_t count,
                        bf16* out) const {
    // Of the exponent, whose last bit is the lower byte's first.
    const int bias = static_cast<int>(std::bit_cast<std::uint32_t>(scale) >> 23) - 127 + 120;
    const auto odd_bias = hn::LoadDup128(d_, kOddBias[bias % 2]);
    const auto half_bias = hn::Set(d_, static_cast<std::uint8_t>(bias / 2));
    const auto small_lower = hn::LoadDup128(d_, kLower[bias % 2]);
    const auto small_upper =
        hn::And(hn::Add(hn::LoadDup128(d_, kUpper[bias % 2]), half_bias), not_zero_);
    for (std::size_t i = 0; i < count; i += hn::Lanes(d_)) {
      const auto in_order = hn::BitCast(d64_, hn::LoadU(d_, codes + i));
      const auto code = hn::BitCast(d_, hn::TableLookupLanes(in_order, order_));
      const auto size = hn::And(code, hn::Set(d_, 0x7f));
      const auto biased = hn::Add(size, odd_bias);
      auto low = hn::ShiftLeft<4>(biased);
      auto high = hn::Add(hn::ShiftRight<4>(biased), half_bias);
      const auto is_small = hn::RebindMask(
          d_, hn::Lt(hn::BitCast(d_signed_, size), hn::Set(d_signed_, kFirstNormalCode)));
      low = hn::IfThenElse(is_small, hn::TableLookupBytes(small_lower, size), low);
      high = hn::IfThenElse(is_small, hn::TableLookupBytes(small_upper, size), high);
      const auto is_nan = hn::Eq(size, hn::Set(d_, kNanCode));
      low = hn::IfThenElse(is_nan, hn::Set(d_, 0xc0), low);
      high = hn::Or(hn::IfThenElse(is_nan, hn::Set(d_, 0x7f), high), hn::Xor(code, size));
      auto* words = reinterpret_cast<std::uint8_t*>(out + i);
      hn::StoreU(hn::InterleaveLower(d_, low, high), d_, words);
      hn::StoreU(hn::InterleaveUpper(d_, low, high), d_, words + hn::Lanes(d_));
    }
  }

 private:
  using Bytes = hn::ScalableTag<std::uint8_t>;
  using SignedBytes = hn::Repartition<std::int8_t, Bytes>;
  using Words64 = hn::Repartition<std::uint64_t, Bytes>;
  // Interleaving works inside blocks of 16 bytes, of which each takes 8 bytes of the first half of
  // the vector and 8 of the second.
  alignas(64) static constexpr std::uint64_t kOrders[3][8] = {
      {0, 1}, {0, 2, 1, 3}, {0, 4, 1, 5, 2, 6, 3, 7}};
  // The codes that are not normal, 0 to 7 times 2^-9, for a bias that is even and one that is odd:
  // the lower byte, and the upper one's distance from half the bias.
  alignas(16) static constexpr std::uint8_t kLower[2][16] = {
      {0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60}, {0, 0x80, 0, 0x40, 0x80, 0xa0, 0xc0, 0xe0}};
  alignas(16) static constexpr std::uint8_t kUpper[2][16] = {{0, 0xff, 0xff, 0xff, 0, 0, 0, 0},
                                                             {0, 0xff, 0, 0, 0, 0, 0, 0}};
  alignas(16) static constexpr std::uint8_t kNotZero[16] = {0,    0xff, 0xff, 0xff,
                                                            0xff, 0xff, 0xff, 0xff};
  alignas(16) static constexpr std::uint8_t kOddBias[2][16] = {
      {}, {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}};

  [[no_unique_address]] Bytes d_;
  [[no_unique_address]] SignedBytes d_signed_;
  [[no_unique_address]] Words64 d64_;
  decltype(hn::SetTableIndices(Words64(), kOrders[0])) order_;
  hn::Vec<Bytes> not_zero_;
};

#endif

/// out[i] = bf16(codes[i] x scales[i / kCodesPerScale]); both ways give the same bits. Scales need
/// no alignment.
inline void widen_codes(const std::uint8_t* codes, const std::byte* scales, std::size_t count,
                        bf16* out) {
#if HWY_TARGET != HWY_SCALAR
  const ExponentWidening by_exponent;
#endif
  for (; count > 0; scales += sizeof(float)) {
    float scale = 0;
    std::memcpy(&scale, scales, sizeof scale);
    const std::size_t tile = std::min(count, kCodesPerScale);
    std::size_t whole = 0;
#if HWY_TARGET != HWY_SCALAR
    if (ExponentWidening::serves(scale)) {
      whole = tile - tile % hn::Lanes(hn::ScalableTag<std::uint8_t>());
      by_exponent.widen(codes, scale, whole, out);
    }
#endif
    if (whole < tile) widen_codes_by_product(codes + whole, scale, tile - whole, out + whole);
    codes += tile;
    out += tile;
    count -= tile;
  }
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
