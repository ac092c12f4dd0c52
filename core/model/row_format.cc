#include "core/model/row_format.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <vector>

#include "core/base/elements.h"
#include "core/base/error.h"
#include "core/model/row_codec.h"

namespace tributary {
namespace {

template <DType type>
constexpr RowCodec plain_codec(RowFormat format) {
  return {
      .format = format,
      .name = dtype_name(type),
      .elements = type,
      .fits = [](const RowLayout& /*layout*/) noexcept { return true; },
      .bytes = [](const RowLayout& layout) noexcept { return layout.values() * dtype_bytes(type); },
      .encode = [](const RowLayout& /*layout*/, std::span<const float> values,
                   std::byte* row) { store_elements(type, values, row); },
      .decode = [](const RowLayout& /*layout*/, const std::byte* row,
                   std::span<float> values) { load_elements(type, row, values); }};
}

constexpr std::array kCodecs{plain_codec<DType::kBF16>(RowFormat::kBF16),
                             plain_codec<DType::kF32>(RowFormat::kF32)};

constexpr auto kFormats = [] {
  std::array<RowFormat, kCodecs.size()> formats{};
  std::ranges::transform(kCodecs, formats.begin(), &RowCodec::format);
  return formats;
}();

/// Null for an id that is not in the list.
const RowCodec* find_codec(RowFormat format) noexcept {
  const auto* const found = std::ranges::find(kCodecs, format, &RowCodec::format);
  return found == kCodecs.end() ? nullptr : found;
}

const RowCodec& codec_of(RowFormat format) {
  const RowCodec* codec = find_codec(format);
  if (codec == nullptr) {
    fail(ErrorCode::kInvalidArgument, "row format {} is none of {}", static_cast<int>(format),
         row_format_names(row_formats(), ", "));
  }
  return *codec;
}

/// Calls row(values, bytes) for each row; the bytes of one follow those of another by `stride`.
template <typename Values, typename Bytes, typename Row>
void for_each_row(const RowLayout& layout, Values values, Bytes* bytes, std::size_t stride,
                  Row row) {
  const std::size_t width = layout.values();
  if (width == 0 || values.size() % width != 0) {
    fail(ErrorCode::kInvalidArgument, "{} values are not whole rows of {}", values.size(), width);
  }
  for (std::size_t begin = 0; begin < values.size(); begin += width, bytes += stride) {
    row(values.subspan(begin, width), bytes);
  }
}

}  // namespace

std::span<const RowFormat> row_formats() noexcept {
  return kFormats;
}

bool is_known(RowFormat format) noexcept {
  return find_codec(format) != nullptr;
}

std::string_view row_format_name(RowFormat format) noexcept {
  const RowCodec* codec = find_codec(format);
  return codec == nullptr ? "unknown" : codec->name;
}

std::string row_format_names(std::span<const RowFormat> formats, std::string_view separator) {
  std::string names;
  for (const RowFormat format : formats) {
    if (!names.empty()) names += separator;
    names += row_format_name(format);
  }
  return names;
}

std::optional<RowFormat> find_row_format(std::string_view name) noexcept {
  const auto* const found = std::ranges::find(kCodecs, name, &RowCodec::name);
  if (found == kCodecs.end()) return std::nullopt;
  return found->format;
}

std::optional<DType> plain_elements(RowFormat format) noexcept {
  const RowCodec* codec = find_codec(format);
  return codec == nullptr ? std::nullopt : codec->elements;
}

std::size_t RowLayout::bytes() const noexcept {
  const RowCodec* codec = find_codec(format);
  return codec == nullptr ? 0 : codec->bytes(*this);
}

void RowLayout::encode(std::span<const float> values, std::byte* rows) const {
  const RowCodec& codec = codec_of(format);
  for_each_row(*this, values, rows, bytes(), [&](std::span<const float> row, std::byte* stored) {
    codec.encode(*this, row, stored);
  });
}

void RowLayout::decode(const std::byte* rows, std::span<float> values) const {
  const RowCodec& codec = codec_of(format);
  for_each_row(*this, values, rows, bytes(), [&](std::span<float> row, const std::byte* stored) {
    codec.decode(*this, stored, row);
  });
}

void RowLayout::round(std::span<float> values) const {
  std::vector<std::byte> row(bytes());
  for_each_row(*this, values, row.data(), 0, [&](std::span<float> one, std::byte* stored) {
    encode(one, stored);
    decode(stored, one);
  });
}

std::size_t scaled_f8_row_bytes(int kv_lora_rank, int qk_rope_head_dim) {
  if (kv_lora_rank < 1 || kv_lora_rank % kScaleBlock != 0 || qk_rope_head_dim < 0) {
    fail(ErrorCode::kInvalidArgument, "rows of {} + {} values with a scale for each {}",
         kv_lora_rank, qk_rope_head_dim, kScaleBlock);
  }
  const auto rank = static_cast<std::size_t>(kv_lora_rank);
  return rank + rank / kScaleBlock * sizeof(float) +
         static_cast<std::size_t>(qk_rope_head_dim) * sizeof(bf16);
}

void decode_scaled_f8_rows(int kv_lora_rank, int qk_rope_head_dim, const std::byte* rows,
                           std::span<float> values) {
  const std::size_t bytes = scaled_f8_row_bytes(kv_lora_rank, qk_rope_head_dim);
  const RowLayout wide{RowFormat::kF32, kv_lora_rank, qk_rope_head_dim};
  const auto rank = static_cast<std::size_t>(kv_lora_rank);
  for_each_row(wide, values, rows, bytes, [&](std::span<float> row, const std::byte* stored) {
    const std::byte* scales = stored + rank;
    for (std::size_t i = 0; i < rank; ++i) {
      float scale = 0;
      std::memcpy(&scale, scales + i / kScaleBlock * sizeof scale, sizeof scale);
      row[i] = f8_e4m3_to_float(std::to_integer<std::uint8_t>(stored[i])) * scale;
    }
    load_elements(DType::kBF16, scales + rank / kScaleBlock * sizeof(float), row.subspan(rank));
  });
}

RowLayout plain_row(std::int64_t values, DType type) {
  const auto* const found = std::ranges::find(kCodecs, type, &RowCodec::elements);
  if (found == kCodecs.end()) {
    fail(ErrorCode::kInvalidArgument, "no row format has elements of {}", dtype_name(type));
  }
  if (values < 1 || values > INT_MAX) {
    fail(ErrorCode::kInvalidArgument, "a row of {} values, must be 1 to {}", values, INT_MAX);
  }
  return {found->format, static_cast<int>(values), 0};
}

void check_row_layout(const RowLayout& layout) {
  if (layout.kv_lora_rank < 1 || layout.qk_rope_head_dim < 0 ||
      !codec_of(layout.format).fits(layout)) {
    fail(ErrorCode::kInvalidArgument, "rows of {} + {} values cannot be stored as {}",
         layout.kv_lora_rank, layout.qk_rope_head_dim, row_format_name(layout.format));
  }
}

}  // namespace tributary
