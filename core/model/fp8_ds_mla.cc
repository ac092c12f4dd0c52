#include "core/model/fp8_ds_mla.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/base/dtype.h"
#include "core/base/elements.h"

namespace tributary::fp8_ds_mla {
namespace {

Parts parts_of(const RowLayout& layout) {
  return {static_cast<std::size_t>(layout.kv_lora_rank),
          static_cast<std::size_t>(layout.qk_rope_head_dim)};
}

float scale_of(const std::byte* scales, std::size_t tile) {
  float scale = 0;
  std::memcpy(&scale, scales + tile * sizeof scale, sizeof scale);
  return scale;
}

/// Vectors of bf16, as bits: a client waits for its rows to be encoded, and fp32 has half as many
/// lanes. GCC's and Clang's, for any processor.
using Halves [[gnu::vector_size(16)]] = std::int16_t;
using Bytes [[gnu::vector_size(8)]] = std::uint8_t;
constexpr std::size_t kLanes = sizeof(Halves) / sizeof(std::int16_t);
constexpr std::int16_t kSize = 0x7fff;      // all but the sign; sizes are ordered as their numbers
constexpr std::int16_t kInfinity = 0x7f80;  // and what is larger is NaN

/// The largest finite size of a tile.
float largest_of(std::span<const Halves> tile) {
  Halves largest{};
  for (const Halves bits : tile) {
    const Halves size = bits & kSize;
    const Halves finite = size & (size < kInfinity);
    largest = finite > largest ? finite : largest;
  }
  std::int16_t most = 0;
  for (std::size_t i = 0; i < kLanes; ++i) most = std::max(most, std::int16_t{largest[i]});
  return to_float(bf16{static_cast<std::uint16_t>(most)});
}

/// The codes of a tile whose numbers are at most 448 x 2^exponent.
void encode_tile(std::span<const Halves> tile, int exponent, std::byte* codes) {
  // The middles between the numbers of two small codes, 0 to 8: a size above has the larger one. In
  // the middle itself the even one is right.
  std::array<std::int16_t, 8> below{};
  for (int code = 0; code < 8; ++code) {
    const float middle = (static_cast<float>(code) + 0.5F) * 0x1p-9F * power_of_two(exponent);
    below[static_cast<std::size_t>(code)] =
        static_cast<std::int16_t>(to_bf16(middle).bits - code % 2);
  }
  const auto bias = static_cast<std::int16_t>((exponent + 120) * 128);
  for (const Halves bits : tile) {
    const Halves size = bits & kSize;
    const Halves moved = size - bias;  // a code's bits, and four more
    const Halves normal = (moved + 7 + ((moved >> 4) & 1)) >> 4;
    Halves small{};
    for (const std::int16_t last : below) small -= size > last;
    Halves code = moved < 0x80 ? small : normal;
    code = size >= kInfinity ? code * 0 + 0x7f : code;
    code |= (bits >> 8) & 0x80;
    const Bytes bytes = __builtin_convertvector(code, Bytes);
    std::memcpy(codes, &bytes, sizeof bytes);
    codes += sizeof bytes;
  }
}

}  // namespace

bool fits(const RowLayout& layout) noexcept {
  return layout.kv_lora_rank % static_cast<int>(kTile) == 0 && layout.qk_rope_head_dim % 2 == 0;
}

std::size_t bytes(const RowLayout& layout) noexcept {
  return parts_of(layout).end;
}

void encode(const RowLayout& layout, std::span<const float> values, std::byte* row) {
  const Parts parts = parts_of(layout);
  for (std::size_t tile = 0; tile < parts.scales / kTile; ++tile) {
    const float* from = values.data() + tile * kTile;
    std::array<std::uint16_t, kTile> bits{};
    for (std::size_t i = 0; i < kTile; ++i) bits[i] = to_bf16(from[i]).bits;
    std::array<Halves, kTile / kLanes> halves{};
    std::memcpy(halves.data(), bits.data(), sizeof bits);
    const int exponent = scale_exponent(largest_of(halves));
    const float scale = power_of_two(exponent);
    std::memcpy(row + parts.scales + tile * sizeof scale, &scale, sizeof scale);
    encode_tile(halves, exponent, row + tile * kTile);
  }
  store_elements(DType::kBF16, values.subspan(parts.scales), row + parts.rope);
}

void decode(const RowLayout& layout, const std::byte* row, std::span<float> values) {
  const Parts parts = parts_of(layout);
  for (std::size_t tile = 0; tile < parts.scales / kTile; ++tile) {
    const float scale = scale_of(row + parts.scales, tile);
    const std::byte* codes = row + tile * kTile;
    float* to = values.data() + tile * kTile;
    for (std::size_t i = 0; i < kTile; ++i) {
      to[i] = round_to_bf16(f8_e4m3_to_float(std::to_integer<std::uint8_t>(codes[i])) * scale);
    }
  }
  load_elements(DType::kBF16, row + parts.rope, values.subspan(parts.scales));
}

std::string fault(const RowLayout& layout, const std::byte* row) {
  const Parts parts = parts_of(layout);
  for (std::size_t tile = 0; tile < parts.scales / kTile; ++tile) {
    const float scale = scale_of(row + parts.scales, tile);
    if (!std::isfinite(scale) || scale <= 0) {
      return fmt::format("scale {} is {}, must be positive and finite", tile, scale);
    }
  }
  return {};
}

}  // namespace tributary::fp8_ds_mla
