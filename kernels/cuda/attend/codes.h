// Rows of FP8 codes on a device: where they keep what (core/model/fp8_ds_mla.h, fp8.h), and their
// values as bf16. What computes sees bf16 rows, whatever the cache holds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/interface/backend.h"
#include "core/model/fp8_ds_mla.h"
#include "kernels/cuda/attend/ptx.h"

namespace tributary::cuda {

/// The element of such rows, for kernels that are compiled for a type of row. Which of the formats
/// it is, a launch says.
struct Codes {};

/// Of the formats that this backend lists.
[[nodiscard]] constexpr bool holds_codes(const RowFormat& format) noexcept {
  constexpr std::uint8_t kBF16 = RowFormat::kBF16.id;
  constexpr std::uint8_t kF32 = RowFormat::kF32.id;
  return format.id != kBF16 && format.id != kF32;
}

/// Whether a row brings its scales along, and its RoPE part as bf16. Otherwise all of it is codes,
/// of the format's scale.
TRIBUTARY_DEVICE bool scales_in_row(const RowFormat& format) {
  constexpr std::uint8_t kId = RowFormat::kFp8DsMla.id;
  return format.id == kId;
}
TRIBUTARY_DEVICE std::size_t code_row_bytes(const RowFormat& format, int kv_lora_rank,
                                            int qk_rope_head_dim) {
  const auto rank = static_cast<std::size_t>(kv_lora_rank);
  const auto rope = static_cast<std::size_t>(qk_rope_head_dim);
  return scales_in_row(format) ? fp8_ds_mla::Parts(rank, rope).end : rank + rope;
}

TRIBUTARY_DEVICE float code_times_scale(std::uint8_t code, float scale) {
  return round_to_bf16(ptx::multiply(f8_e4m3_to_float(code), scale));
}
/// One value of a row of any widths.
TRIBUTARY_DEVICE float code_value(const RowFormat& format, int kv_lora_rank, const std::byte* row,
                                  int column) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(row);
  if (!scales_in_row(format)) return code_times_scale(codes[column], format.scale);
  const fp8_ds_mla::Parts parts(static_cast<std::size_t>(kv_lora_rank), 0);
  if (column >= kv_lora_rank) {
    return to_float(reinterpret_cast<const bf16*>(row + parts.rope)[column - kv_lora_rank]);
  }
  const auto* scales = reinterpret_cast<const float*>(row + parts.scales);
  return code_times_scale(codes[column], scales[column / static_cast<int>(fp8_ds_mla::kTile)]);
}

/// Codes of a chunk, whose values take two.
inline constexpr int kChunkCodes = sizeof(ptx::Chunk);

/// The values of one half of a chunk's codes.
TRIBUTARY_DEVICE ptx::Chunk widen(const ptx::Chunk& codes, int half, float scale) {
  ptx::Chunk values;
  for (int word = 0; word < 2; ++word) {
    float of_codes[4];
    ptx::floats_of_codes(codes.words[2 * half + word], of_codes);
    for (int at = 0; at < 4; at += 2) {
      values.words[2 * word + at / 2] = ptx::pack_bf16(ptx::multiply(of_codes[at], scale),
                                                       ptx::multiply(of_codes[at + 1], scale));
    }
  }
  return values;
}

}  // namespace tributary::cuda
