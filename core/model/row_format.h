// The formats in which a latent row is stored; one object with one name serves all, from the flag
// to the kernel. A row is the values of c_kv, then those of k_pe; the format decides their size and
// rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/dtype.h"

namespace tributary {

/// A format is added with its id and its entry in row_format.cc.
struct RowFormat {
  std::uint8_t id = 0;  // in messages
  float scale = 1;      // of all rows of `fp8`, positive and finite; 1 of every other format

  static const RowFormat kF32;       // `f32`: every value as fp32
  static const RowFormat kBF16;      // `bf16`: every value to nearest even
  static const RowFormat kFp8DsMla;  // `fp8_ds_mla`: see fp8_ds_mla.h
  static const RowFormat kFp8;       // `fp8`, `fp8@SCALE`: see fp8.h

  /// For comm/wire.
  static void fields(auto& archive, auto& format) { archive(format.id, format.scale); }

  friend constexpr bool operator==(const RowFormat&, const RowFormat&) = default;
};
inline constexpr RowFormat RowFormat::kF32{1};
inline constexpr RowFormat RowFormat::kBF16{2};
inline constexpr RowFormat RowFormat::kFp8DsMla{3};
inline constexpr RowFormat RowFormat::kFp8{4};

/// All formats, the default first; `fp8` with a scale of 1.
[[nodiscard]] std::span<const RowFormat> row_formats() noexcept;
/// Whether what came from outside is in the list, with a scale that it may have.
[[nodiscard]] bool is_known(RowFormat format) noexcept;
/// The name in flags and JSON, with a scale other than 1 as `fp8@0.5`; `unknown` for an id that is
/// not in the list.
[[nodiscard]] std::string row_format_name(RowFormat format);
/// The names of `formats`, with `separator` between them.
[[nodiscard]] std::string row_format_names(std::span<const RowFormat> formats,
                                           std::string_view separator);
[[nodiscard]] std::optional<RowFormat> find_row_format(std::string_view name) noexcept;
/// The type of all values, if a row is nothing but its values one after the other.
[[nodiscard]] std::optional<DType> plain_elements(RowFormat format) noexcept;
/// The type in which the values of any row are exact. Throws kInvalidArgument for an unknown
/// format.
[[nodiscard]] DType row_values(RowFormat format);

/// The rows of a model in a format.
struct RowLayout {
  RowFormat format = RowFormat::kBF16;
  int kv_lora_rank = 0;
  int qk_rope_head_dim = 0;

  /// Values in one row.
  [[nodiscard]] constexpr std::size_t values() const noexcept {
    return static_cast<std::size_t>(kv_lora_rank) + static_cast<std::size_t>(qk_rope_head_dim);
  }
  [[nodiscard]] std::size_t bytes() const noexcept;

  /// Encodes whole rows of values as rows of bytes, both dense, and decodes them. Every backend
  /// attends to the values that decode() gives. Throws kInvalidArgument unless `values` are whole
  /// rows.
  void encode(std::span<const float> values, std::byte* rows) const;
  void decode(const std::byte* rows, std::span<float> values) const;
  /// The first of these whole rows, dense, that encode() could not have written and that has no
  /// values, and why; empty if there is none. Of plain rows, and of codes, any bits are values.
  [[nodiscard]] std::string fault(std::span<const std::byte> rows) const;
  /// Rounds whole rows of values to the values that encode() and decode() would give.
  void round(std::span<float> values) const;

  friend bool operator==(const RowLayout&, const RowLayout&) = default;
};

/// `values` elements of `type`, one after the other: a query, a part of a row, activations. Throws
/// kInvalidArgument for a type that no row has.
[[nodiscard]] RowLayout plain_row(std::int64_t values, DType type = DType::kF32);

/// Throws kInvalidArgument for an unknown format, or widths that the format cannot store.
void check_row_layout(const RowLayout& layout);

}  // namespace tributary
