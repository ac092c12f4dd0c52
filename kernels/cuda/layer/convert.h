// Kernel of ConvertArgs. The rounding is core's own, so that every NaN keeps the bits that the
// other backends give it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

inline constexpr unsigned kConvertThreads = 256;
inline constexpr float kLargestFinite = 0x1.fffffep127F;

TRIBUTARY_DEVICE void convert_element(float value, float& to) {
  to = value;
}
TRIBUTARY_DEVICE void convert_element(float value, bf16& to) {
  to = to_bf16(value);
}
TRIBUTARY_DEVICE void convert_element(bf16 value, float& to) {
  to = to_float(value);
}
TRIBUTARY_DEVICE void convert_element(bf16 value, bf16& to) {
  to = value;
}

/// Rows of plain elements. Block (r, j): the j-th of `shares` interleaved shares of row r.
template <typename From, typename To>
TRIBUTARY_DEVICE void convert_block(const ConvertArgs& c, unsigned shares) {
  const auto row = static_cast<std::size_t>(ptx::block());
  const auto* from = reinterpret_cast<const From*>(static_cast<const std::byte*>(c.src) +
                                                   row * c.src_stride_bytes);
  auto* to = reinterpret_cast<To*>(static_cast<std::byte*>(c.dst) + row * c.dst_stride_bytes);
  const auto values = static_cast<std::int64_t>(c.src_row.values());
  const std::int64_t step = static_cast<std::int64_t>(shares) * kConvertThreads;
  for (std::int64_t i = static_cast<std::int64_t>(ptx::block_y()) * kConvertThreads + ptx::thread();
       i < values; i += step) {
    convert_element(from[i], to[i]);
  }
}

/// The code of a value, which keeps the sign of a NaN; infinities are NaN, or 448.
TRIBUTARY_DEVICE std::uint8_t code_of(float value, float scale, bool infinity_is_nan) {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t size = bits & 0x7fffffffU;
  if (size > kInfinity || (infinity_is_nan && size == kInfinity)) {
    return static_cast<std::uint8_t>(0x7fU | (bits >> 24 & 0x80U));
  }
  return to_f8_e4m3(ptx::divide(value, scale));
}

/// A warp takes a tile of values at a time, a lane four of them.
TRIBUTARY_DEVICE void encode_block(const ConvertArgs& c) {
  constexpr int kTile = static_cast<int>(fp8_ds_mla::kTile);
  constexpr int kWarps = kConvertThreads / 32;
  constexpr int kLaneValues = kTile / 32;
  const auto row = static_cast<std::size_t>(ptx::block());
  const RowLayout& layout = c.dst_row;
  const bool own_scales = scales_in_row(layout.format);
  const auto* from = reinterpret_cast<const float*>(static_cast<const std::byte*>(c.src) +
                                                    row * c.src_stride_bytes);
  std::byte* to = static_cast<std::byte*>(c.dst) + row * c.dst_stride_bytes;
  const fp8_ds_mla::Parts parts(static_cast<std::size_t>(layout.kv_lora_rank),
                                static_cast<std::size_t>(layout.qk_rope_head_dim));
  const int lane = static_cast<int>(ptx::thread()) % 32;
  const auto width = static_cast<int>(own_scales ? parts.scales : layout.values());
  for (int tile = static_cast<int>(ptx::thread()) / 32; tile * kTile < width; tile += kWarps) {
    float values[kLaneValues];
    float largest = 0;  // finite ones
    for (int i = 0; i < kLaneValues; ++i) {
      const int column = tile * kTile + lane * kLaneValues + i;
      values[i] = column < width ? round_to_bf16(from[column]) : 0.0F;
      const float size = values[i] < 0 ? -values[i] : values[i];
      if (size <= kLargestFinite) largest = ptx::larger(largest, size);
    }
    float scale = layout.format.scale;
    if (own_scales) {
      for (unsigned bits = 16; bits > 0; bits /= 2) {
        largest = ptx::larger(largest, ptx::shuffle_xor(largest, bits));
      }
      scale = fp8_ds_mla::power_of_two(fp8_ds_mla::scale_exponent(largest));
      if (lane == 0) reinterpret_cast<float*>(to + parts.scales)[tile] = scale;
    }
    for (int i = 0; i < kLaneValues; ++i) {
      const int column = tile * kTile + lane * kLaneValues + i;
      if (column >= width) continue;
      to[column] = static_cast<std::byte>(code_of(values[i], scale, own_scales));
    }
  }
  if (!own_scales) return;
  const auto* rope = from + parts.scales;
  for (auto i = static_cast<int>(ptx::thread()); i < layout.qk_rope_head_dim;
       i += kConvertThreads) {
    reinterpret_cast<bf16*>(to + parts.rope)[i] = to_bf16(rope[i]);
  }
}

/// Rows of codes from values, to values, or as they are, with the bits of RowLayout::encode and
/// decode. A block a row.
TRIBUTARY_DEVICE void convert_codes_block(const ConvertArgs& c) {
  const bool copies = c.src_row.format == c.dst_row.format;
  if (!copies && holds_codes(c.dst_row.format)) return encode_block(c);
  const auto row = static_cast<std::size_t>(ptx::block());
  const std::byte* from = static_cast<const std::byte*>(c.src) + row * c.src_stride_bytes;
  std::byte* to = static_cast<std::byte*>(c.dst) + row * c.dst_stride_bytes;
  const RowLayout& layout = c.src_row;
  const std::size_t count =
      copies ? code_row_bytes(layout.format, layout.kv_lora_rank, layout.qk_rope_head_dim)
             : layout.values();
  for (std::size_t i = ptx::thread(); i < count; i += kConvertThreads) {
    if (copies) {
      to[i] = from[i];
    } else {
      reinterpret_cast<float*>(to)[i] =
          code_value(layout.format, layout.kv_lora_rank, from, static_cast<int>(i));
    }
  }
}

}  // namespace tributary::cuda
