// Rows of FP8 with a scale per tile, as FlashMLA, vLLM (`fp8_ds_mla`) and SGLang keep them for
// DeepSeek-V3.2: kv_lora_rank e4m3 codes | a fp32 scale per 128 of them | qk_rope_head_dim bf16;
// 656 bytes for 512 + 64. A value is code x scale, rounded to bf16.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/model/row_codec.h"

namespace tributary::fp8_ds_mla {

/// Codes that share a scale.
inline constexpr std::size_t kTile = 128;

/// Where the parts of a row begin, in bytes.
struct Parts {
  std::size_t scales, rope, end;

  constexpr Parts(std::size_t kv_lora_rank, std::size_t qk_rope_head_dim) noexcept
      : scales(kv_lora_rank),
        rope(scales + kv_lora_rank / kTile * sizeof(float)),
        end(rope + qk_rope_head_dim * sizeof(bf16)) {}
};

/// The exponent of a tile's scale: of the smallest power of two with which its largest finite size,
/// or FlashMLA's bound, is at most 448 = 1.75 x 2^8.
[[nodiscard]] constexpr int scale_exponent(float largest) noexcept {
  constexpr float kLeastLargest = 1e-4F;
  const auto bits = std::bit_cast<std::uint32_t>(largest < kLeastLargest ? kLeastLargest : largest);
  constexpr std::uint32_t kThreeQuarters = 0x600000;  // the mantissa of 1.75
  return static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffffU) > kThreeQuarters ? 1 : 0);
}
[[nodiscard]] constexpr float power_of_two(int exponent) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// A row's own alignment is that of its scales: kv_lora_rank is a multiple of kTile,
/// qk_rope_head_dim even.
[[nodiscard]] bool fits(const RowLayout& layout) noexcept;
[[nodiscard]] std::size_t bytes(const RowLayout& layout) noexcept;
/// Values are rounded to bf16 first. A tile's scale is the smallest power of two with which its
/// largest finite value, or 1e-4, is at most 448; infinities become NaN, which e4m3 has.
void encode(const RowLayout& layout, std::span<const float> values, std::byte* row);
void decode(const RowLayout& layout, const std::byte* row, std::span<float> values);
/// Empty, or which scale is none: zero, negative or not finite.
[[nodiscard]] std::string fault(const RowLayout& layout, const std::byte* row);

inline constexpr RowCodec kCodec{.format = RowFormat::kFp8DsMla,
                                 .name = "fp8_ds_mla",
                                 .values = DType::kBF16,
                                 .plain = false,
                                 .scaled = false,
                                 .fits = fits,
                                 .bytes = bytes,
                                 .encode = encode,
                                 .decode = decode,
                                 .fault = fault};

}  // namespace tributary::fp8_ds_mla
