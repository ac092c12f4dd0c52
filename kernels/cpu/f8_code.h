// The form in which a weight is kept in FP8: e4m3 codes without NaN, and scales as widening needs
// them.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/dtype.h"

namespace tributary::cpu {

/// A code's exponent and mantissa in the place of an fp32's are the code's number times 2^-120,
/// subnormals included. Scales are stored times 2^120, which is exact, so that one multiplication
/// widens a code to the bits of number x scale: the product is the same.
inline constexpr float kF8Lift = 0x1p120F;

/// Whether `scale` can be stored.
[[nodiscard]] inline bool f8_scale_fits(float scale) noexcept {
  return std::isfinite(scale * kF8Lift);
}
[[nodiscard]] inline float f8_stored_scale(float scale) noexcept {
  return scale * kF8Lift;
}
/// The value that a code and a stored scale stand for.
[[nodiscard]] inline float f8_widen(std::uint8_t code, float stored_scale) noexcept {
  const std::uint32_t bits = (code & 0x80U) << 24 | (code & 0x7fU) << 20;
  return std::bit_cast<float>(bits) * stored_scale;
}

/// The code, other than NaN, whose product with `scale` is `value` to the bit, if there is one and
/// division finds it: where the product is a normal number, it does.
[[nodiscard]] inline std::optional<std::uint8_t> f8_code_of(float value, float scale) noexcept {
  static const std::array<float, 256> numbers = [] {
    std::array<float, 256> all{};
    for (std::size_t code = 0; code < all.size(); ++code) {
      all[code] = f8_e4m3_to_float(static_cast<std::uint8_t>(code));
    }
    return all;
  }();
  const float size = value == 0 ? 0.0F : std::abs(value / scale);
  std::uint32_t code = 0;
  if (size < 0x1p-6F) {  // subnormals are multiples of 2^-9
    code = static_cast<std::uint32_t>(std::lround(size * 0x1p9F));
  } else if (size < 0x1p9F) {
    code = ((std::bit_cast<std::uint32_t>(size) + (1U << 19)) >> 20) - (120U << 3);
  } else {
    return {};  // also NaN
  }
  if (code >= 0x7f) return {};
  if (std::signbit(value) != std::signbit(scale)) code |= 0x80U;
  if (std::bit_cast<std::uint32_t>(numbers[code] * scale) != std::bit_cast<std::uint32_t>(value)) {
    return {};
  }
  return static_cast<std::uint8_t>(code);
}

}  // namespace tributary::cpu
