// The parts of a row format. For row_format.cc, which lists all formats, and the formats' files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/model/row_format.h"

namespace tributary {

/// Functions that work on one row each; the layout's widths are such that fits() is true.
struct RowCodec {
  RowFormat format;
  std::string_view name;
  DType values;  // see row_values()
  bool plain;    // a row is its values, one after the other
  bool scaled;   // RowFormat::scale may be other than 1
  bool (*fits)(const RowLayout& layout) noexcept;
  std::size_t (*bytes)(const RowLayout& layout) noexcept;
  void (*encode)(const RowLayout& layout, std::span<const float> values, std::byte* row);
  void (*decode)(const RowLayout& layout, const std::byte* row, std::span<float> values);
  std::string (*fault)(const RowLayout& layout, const std::byte* row);  // see RowLayout::fault()
};

}  // namespace tributary
