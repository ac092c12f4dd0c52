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

/// For scales with which every product other than 0 is a normal number: what a code's mantissa and
/// the last bit of its exponent give is looked up, and the rest of its exponent is added. The two
/// bytes of all words are made apart, so that a vector is as many codes as it has bytes.
class ByteWidening {
 public:
  HWY_INLINE ByteWidening() : order_(hn::SetTableIndices(d64_, kOrders[hn::Lanes(d64_) / 4])) {}

  /// From 2^-9 of the smallest code to 448 of the largest.
  [[nodiscard]] HWY_INLINE static bool serves(float scale) {
    const auto exponent = static_cast<int>(std::bit_cast<std::uint32_t>(scale) >> 23) - 127;
    return exponent >= -126 + 9 && exponent <= 127 - 9;
  }

  HWY_INLINE void set_scale(float scale) {
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    if ((bits & 0x7fffffU) == 0) {
      set_power_of_two(static_cast<int>(bits >> 23) - 127 + 120);
    } else {
      set_products(scale);
    }
  }

  /// `count` is whole vectors.
  HWY_INLINE void widen(const std::uint8_t* codes, std::size_t count, bf16* out) const {
    for (std::size_t i = 0; i < count; i += hn::Lanes(d_)) {
      const auto in_order = hn::BitCast(d64_, hn::LoadU(d_, codes + i));
      const auto code = hn::BitCast(d_, hn::TableLookupLanes(in_order, order_));
      const auto size = hn::And(code, hn::Set(d_, 0x7f));
      const auto entry = hn::And(code, hn::Set(d_, kEntries - 1));
      auto low = hn::TableLookupBytes(low_, entry);
      auto high = hn::Add(hn::TableLookupBytes(high_, entry), hn::ShiftRight<4>(size));
      const auto is_small = hn::RebindMask(
          d_, hn::Lt(hn::BitCast(d_signed_, size), hn::Set(d_signed_, kFirstNormalCode)));
      low = hn::IfThenElse(is_small, hn::TableLookupBytes(small_low_, entry), low);
      high = hn::IfThenElse(is_small, hn::TableLookupBytes(small_high_, entry), high);
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
  static constexpr std::size_t kEntries = 16;
  // Interleaving works inside blocks of 16 bytes, of which each takes 8 bytes of the first half of
  // the vector and 8 of the second.
  alignas(64) static constexpr std::uint64_t kOrders[3][8] = {
      {0, 1}, {0, 2, 1, 3}, {0, 4, 1, 5, 2, 6, 3, 7}};
  // Of codes 16 to 31, and of those that are not normal, 0 to 7.
  alignas(64) static constexpr float kNumbers[2 * kEntries] = {
      0x1p-5F, 0x1.2p-5F, 0x1.4p-5F, 0x1.6p-5F, 0x1.8p-5F, 0x1.ap-5F, 0x1.cp-5F, 0x1.ep-5F,
      0x1p-4F, 0x1.2p-4F, 0x1.4p-4F, 0x1.6p-4F, 0x1.8p-4F, 0x1.ap-4F, 0x1.cp-4F, 0x1.ep-4F,
      0,       0x1p-9F,   0x1p-8F,   0x1.8p-8F, 0x1p-7F,   0x1.4p-7F, 0x1.8p-7F, 0x1.cp-7F};

  // For a power of two, by its parity: the lower bytes, and the upper ones' distance from half of
  // what is added to exponents. Of normal codes, and of the others but 0.
  alignas(16) static constexpr std::uint8_t kLow[2][kEntries] = {
      {0, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0},
      {0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0, 0, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60,
       0x70}};
  alignas(16) static constexpr std::uint8_t kHigh[2][kEntries] = {
      {}, {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}};
  alignas(16) static constexpr std::uint8_t kSmallLow[2][kEntries] = {
      {0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60}, {0, 0x80, 0, 0x40, 0x80, 0xa0, 0xc0, 0xe0}};
  alignas(16) static constexpr std::uint8_t kSmallHigh[2][kEntries] = {
      {0, 0xff, 0xff, 0xff, 0, 0, 0, 0}, {0, 0xff, 0, 0, 0, 0, 0, 0}};
  alignas(16) static constexpr std::uint8_t kNotZero[kEntries] = {0,    0xff, 0xff, 0xff,
                                                                  0xff, 0xff, 0xff, 0xff};

  /// `bias` is added to exponents.
  HWY_INLINE void set_power_of_two(int bias) {
    const auto half_bias = hn::Set(d_, static_cast<std::uint8_t>(bias / 2));
    low_ = hn::LoadDup128(d_, kLow[bias % 2]);
    high_ = hn::Add(hn::LoadDup128(d_, kHigh[bias % 2]), half_bias);
    small_low_ = hn::LoadDup128(d_, kSmallLow[bias % 2]);
    small_high_ = hn::And(hn::Add(hn::LoadDup128(d_, kSmallHigh[bias % 2]), half_bias),
                          hn::LoadDup128(d_, kNotZero));
  }

  HWY_INLINE void set_products(float scale) {
    const hn::ScalableTag<float> d;
    alignas(64) bf16 products[2 * kEntries];
    for (std::size_t i = 0; i < 2 * kEntries; i += hn::Lanes(d)) {
      store_narrowed(hn::Mul(hn::Load(d, kNumbers + i), hn::Set(d, scale)), products + i);
    }
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(products);
    split(bytes, low_, high_);
    high_ = hn::Sub(high_, hn::Set(d_, 1));  // of codes from 16 on, whose upper exponent is 1
    split(bytes + 2 * kEntries, small_low_, small_high_);
  }

  /// The lower and the upper bytes of a table of words, in every block of a vector.
  HWY_INLINE void split(const std::uint8_t* words, hn::Vec<Bytes>& low,
                        hn::Vec<Bytes>& high) const {
    const hn::FixedTag<std::uint8_t, kEntries> block;
    const auto first = hn::LoadU(block, words);
    const auto second = hn::LoadU(block, words + kEntries);
    alignas(kEntries) std::uint8_t bytes[kEntries];
    hn::Store(hn::ConcatEven(block, second, first), block, bytes);
    low = hn::LoadDup128(d_, bytes);
    hn::Store(hn::ConcatOdd(block, second, first), block, bytes);
    high = hn::LoadDup128(d_, bytes);
  }

  [[no_unique_address]] Bytes d_;
  [[no_unique_address]] SignedBytes d_signed_;
  [[no_unique_address]] Words64 d64_;
  decltype(hn::SetTableIndices(Words64(), kOrders[0])) order_;
  hn::Vec<Bytes> low_, high_, small_low_, small_high_;
};

#endif

/// out[i] = bf16(codes[i] x scales[i / kCodesPerScale]); both ways give the same bits. Scales need
/// no alignment.
inline void widen_codes(const std::uint8_t* codes, const std::byte* scales, std::size_t count,
                        bf16* out) {
#if HWY_TARGET != HWY_SCALAR
  ByteWidening by_bytes;
  float of_bytes = 0;
#endif
  for (; count > 0; scales += sizeof(float)) {
    float scale = 0;
    std::memcpy(&scale, scales, sizeof scale);
    const std::size_t tile = std::min(count, kCodesPerScale);
    std::size_t whole = 0;
#if HWY_TARGET != HWY_SCALAR
    if (ByteWidening::serves(scale)) {
      if (scale != of_bytes) by_bytes.set_scale(scale);
      of_bytes = scale;
      whole = tile - tile % hn::Lanes(hn::ScalableTag<std::uint8_t>());
      by_bytes.widen(codes, whole, out);
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
