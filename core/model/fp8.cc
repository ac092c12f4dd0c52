#include "core/model/fp8.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/base/dtype.h"

namespace tributary::fp8 {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000, kNanCode = 0x7f, kLargestCode = 0x7e;
constexpr std::uint32_t kLeastNormal = 121U << 23;  // 2^-6

/// The nearest code, of two the even one; without branches, so that compilers make vectors of it.
std::uint32_t code_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t size = bits & 0x7fffffffU;
  // Of a normal number the upper bits, of a smaller one how many 2^-9 it is.
  const std::uint32_t normal = (size + 0x7ffffU + ((size >> 20) & 1U) - (120U << 23)) >> 20;
  constexpr float kWhole = 0x1.8p23F;  // where fp32 has no fractions
  const float steps = std::bit_cast<float>(std::min(size, kLeastNormal)) * 0x1p9F + kWhole;
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(steps) - std::bit_cast<std::uint32_t>(kWhole);
  std::uint32_t code = size < kLeastNormal ? small : std::min(normal, kLargestCode);
  code = size > kInfinity ? kNanCode : code;
  return code | (bits >> 24 & 0x80U);
}

}  // namespace

void encode(const RowLayout& layout, std::span<const float> values, std::byte* row) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    row[i] = static_cast<std::byte>(code_of(round_to_bf16(values[i]) / layout.format.scale));
  }
}

void decode(const RowLayout& layout, const std::byte* row, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = round_to_bf16(f8_e4m3_to_float(std::to_integer<std::uint8_t>(row[i])) *
                              layout.format.scale);
  }
}

}  // namespace tributary::fp8
