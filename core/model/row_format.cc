#include "core/model/row_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cmath>
#include <vector>

#include "core/base/elements.h"
#include "core/base/error.h"
#include "core/model/fp8.h"
#include "core/model/fp8_ds_mla.h"
#include "core/model/row_codec.h"

namespace tributary {
namespace {

template <DType type>
constexpr RowCodec plain_codec(RowFormat format) {
  return {
      .format = format,
      .name = dtype_name(type),
      .values = type,
      .plain = true,
      .scaled = false,
      .fits = [](const RowLayout& /*layout*/) noexcept { return true; },
      .bytes = [](const RowLayout& layout) noexcept { return layout.values() * dtype_bytes(type); },
      .encode = [](const RowLayout& /*layout*/, std::span<const float> values,
                   std::byte* row) { store_elements(type, values, row); },
      .decode = [](const RowLayout& /*layout*/, const std::byte* row,
                   std::span<float> values) { load_elements(type, row, values); },
      .fault = [](const RowLayout& /*layout*/, const std::byte* /*row*/) { return std::string(); }};
}

constexpr std::array kCodecs{plain_codec<DType::kBF16>(RowFormat::kBF16),
                             plain_codec<DType::kF32>(RowFormat::kF32), fp8_ds_mla::kCodec,
                             fp8::kCodec};

constexpr auto kFormats = [] {
  std::array<RowFormat, kCodecs.size()> formats{};
  std::ranges::transform(kCodecs, formats.begin(), &RowCodec::format);
  return formats;
}();

/// Null for an id that is not in the list.
const RowCodec* find_codec(RowFormat format) noexcept {
  const auto* const found =
      std::ranges::find(kCodecs, format.id, [](const RowCodec& codec) { return codec.format.id; });
  return found == kCodecs.end() ? nullptr : found;
}

const RowCodec& codec_of(RowFormat format) {
  const RowCodec* codec = find_codec(format);
  if (codec == nullptr) {
    fail(ErrorCode::kInvalidArgument, "row format {} is none of {}", format.id,
         row_format_names(row_formats(), ", "));
  }
  return *codec;
}

bool may_scale(float scale) noexcept {
  return std::isfinite(scale) && scale > 0;
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
  const RowCodec* codec = find_codec(format);
  return codec != nullptr && (codec->scaled ? may_scale(format.scale) : format.scale == 1);
}

std::string row_format_name(RowFormat format) {
  const RowCodec* codec = find_codec(format);
  if (codec == nullptr) return "unknown";
  return format.scale == 1 ? std::string(codec->name)
                           : fmt::format("{}@{}", codec->name, format.scale);
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
  const std::string_view plain_name = name.substr(0, name.find('@'));
  const auto* const found = std::ranges::find(kCodecs, plain_name, &RowCodec::name);
  if (found == kCodecs.end()) return std::nullopt;
  RowFormat format = found->format;
  if (plain_name.size() == name.size()) return format;
  name.remove_prefix(plain_name.size() + 1);
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data(), end, format.scale);
  if (error != std::errc() || rest != end || !found->scaled || !is_known(format)) {
    return std::nullopt;
  }
  return format;
}

std::optional<DType> plain_elements(RowFormat format) noexcept {
  const RowCodec* codec = find_codec(format);
  if (codec == nullptr || !codec->plain) return std::nullopt;
  return codec->values;
}

DType row_values(RowFormat format) {
  return codec_of(format).values;
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

std::string RowLayout::fault(std::span<const std::byte> rows) const {
  const RowCodec& codec = codec_of(format);
  const std::size_t stride = bytes();
  if (codec.plain || rows.empty()) return {};
  if (stride == 0 || rows.size() % stride != 0) {
    fail(ErrorCode::kInvalidArgument, "{} bytes are not whole rows of {}", rows.size(), stride);
  }
  for (std::size_t row = 0; row * stride < rows.size(); ++row) {
    const std::string found = codec.fault(*this, rows.data() + row * stride);
    if (!found.empty()) return fmt::format("row {}: {}", row, found);
  }
  return {};
}

void RowLayout::round(std::span<float> values) const {
  std::vector<std::byte> row(bytes());
  for_each_row(*this, values, row.data(), 0, [&](std::span<float> one, std::byte* stored) {
    encode(one, stored);
    decode(stored, one);
  });
}

RowLayout plain_row(std::int64_t values, DType type) {
  const auto* const found = std::ranges::find_if(
      kCodecs, [type](const RowCodec& codec) { return codec.plain && codec.values == type; });
  if (found == kCodecs.end()) {
    fail(ErrorCode::kInvalidArgument, "no row format has elements of {}", dtype_name(type));
  }
  if (values < 1 || values > INT_MAX) {
    fail(ErrorCode::kInvalidArgument, "a row of {} values, must be 1 to {}", values, INT_MAX);
  }
  return {found->format, static_cast<int>(values), 0};
}

void check_row_layout(const RowLayout& layout) {
  const RowCodec& codec = codec_of(layout.format);
  if (!is_known(layout.format)) {
    fail(ErrorCode::kInvalidArgument, "rows of {} with scale {}, expected {}", codec.name,
         layout.format.scale, codec.scaled ? "a positive, finite one" : "1");
  }
  if (layout.kv_lora_rank < 1 || layout.qk_rope_head_dim < 0 || !codec.fits(layout)) {
    fail(ErrorCode::kInvalidArgument, "rows of {} + {} values cannot be stored as {}",
         layout.kv_lora_rank, layout.qk_rope_head_dim, row_format_name(layout.format));
  }
}

}  // namespace tributary
