// Rows of FP8 with one scale, as vLLM keeps them for dense models (`fp8`): kv_lora_rank +
// qk_rope_head_dim e4m3 codes; 576 bytes for 512 + 64. A value is code x scale, rounded to bf16.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/model/row_codec.h"

namespace tributary::fp8 {

/// Values are rounded to bf16 first, then divided by the scale, in fp32. What is larger than 448
/// becomes 448, infinities too.
void encode(const RowLayout& layout, std::span<const float> values, std::byte* row);
void decode(const RowLayout& layout, const std::byte* row, std::span<float> values);

inline constexpr RowCodec kCodec{
    .format = RowFormat::kFp8,
    .name = "fp8",
    .values = DType::kBF16,
    .plain = false,
    .scaled = true,
    .fits = [](const RowLayout& /*layout*/) noexcept { return true; },
    .bytes = [](const RowLayout& layout) noexcept { return layout.values(); },
    .encode = encode,
    .decode = decode,
    .fault = [](const RowLayout& /*layout*/, const std::byte* /*row*/) { return std::string(); }};

}  // namespace tributary::fp8
