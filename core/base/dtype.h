// Element types of tensors, and the conversions between them that every backend must agree on.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace tributary {

enum class DType : std::uint8_t { kF64, kF32, kBF16, kF8E4M3, kU8, kI32, kLast = kI32 };

/// Bytes per element.
[[nodiscard]] constexpr std::size_t dtype_bytes(DType type) noexcept {
  switch (type) {
    case DType::kF64:
      return 8;
    case DType::kF32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kU8:
      return 1;
    case DType::kI32:
      return 4;
  }
  return 0;
}

/// `f64`, `f32`, `bf16`, `f8_e4m3`, `u8`, `i32`.
[[nodiscard]] constexpr std::string_view dtype_name(DType type) noexcept {
  switch (type) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF8E4M3:
      return "f8_e4m3";
    case DType::kU8:
      return "u8";
    case DType::kI32:
      return "i32";
  }
  return "unknown";
}

/// The upper 16 bits of an IEEE binary32.
struct bf16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(bf16, bf16) = default;
};

[[nodiscard]] constexpr float to_float(bf16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// What follows has masks and selections instead of branches, of which compilers make no vectors.

/// The nearest bf16, as a float: ties to even; NaN stays NaN (quiet), overflow goes to infinity.
[[nodiscard]] constexpr float round_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return std::bit_cast<float>((is_nan ? bits | 0x400000U : rounded) & 0xffff0000U);
}

[[nodiscard]] constexpr bf16 to_bf16(float value) noexcept {
  return bf16{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(round_to_bf16(value)) >> 16)};
}

/// FP8 E4M3 as in "FP8 Formats for Deep Learning" (arXiv:2209.05433), the FN variant: no infinity,
/// 0x7f and 0xff are NaN, bias 7, largest finite 448.
[[nodiscard]] constexpr float f8_e4m3_to_float(std::uint8_t bits) noexcept {
  const std::uint32_t size = bits & 0x7fU;
  const std::uint32_t normal = (size << 20) + (120U << 23);
  const auto small =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(size)) * 0x1p-9F);
  const std::uint32_t is_small = 0U - static_cast<std::uint32_t>(size < 8U);
  const std::uint32_t is_nan = 0U - static_cast<std::uint32_t>(size == 0x7fU);
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  return std::bit_cast<float>((small & is_small) | (normal & ~is_small & ~is_nan) |
                              (0x7fc00000U & is_nan) | sign);
}

/// The nearest code, of two the even one; what is larger than 448 becomes 448, infinities too, and
/// NaN stays NaN.
[[nodiscard]] constexpr std::uint8_t to_f8_e4m3(float value) noexcept {
  constexpr std::uint32_t kInfinity = 0x7f800000, kNan = 0x7f, kLargest = 0x7e;
  constexpr std::uint32_t kLeastNormal = 121U << 23;  // 2^-6
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t size = bits & 0x7fffffffU;
  // Of a normal number the upper bits, of a smaller one how many 2^-9 it is.
  const std::uint32_t normal = (size + 0x7ffffU + ((size >> 20) & 1U) - (120U << 23)) >> 20;
  constexpr float kWhole = 0x1.8p23F;  // where fp32 has no fractions
  const float steps =
      std::bit_cast<float>(size < kLeastNormal ? size : kLeastNormal) * 0x1p9F + kWhole;
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(steps) - std::bit_cast<std::uint32_t>(kWhole);
  std::uint32_t code = size < kLeastNormal ? small : (normal < kLargest ? normal : kLargest);
  code = size > kInfinity ? kNan : code;
  return static_cast<std::uint8_t>(code | (bits >> 24 & 0x80U));
}

/// Rows and columns of a matrix that share a scale in the published FP8 checkpoints
/// (`weight_block_size`).
inline constexpr std::int64_t kScaleBlock = 128;

}  // namespace tributary
