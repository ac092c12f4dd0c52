// Values of options as the text that stands on a command line or in a file: read_value() throws
// kInvalidArgument, value_text() gives the text that it reads, or none.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/row_format.h"
#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/transport/transport_choice.h"

namespace tributary {

/// A whole `text` as a number in low .. high. Throws kInvalidArgument; NaN lies in no range.
template <typename T>
[[nodiscard]] T parse_number(std::string_view text, T low, T high) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(value >= low && value <= high)) {
    fail(ErrorCode::kInvalidArgument, "{} is not a {}number from {} to {}", quote(text),
         std::is_floating_point_v<T> ? "" : "whole ", low, high);
  }
  return value;
}

void read_value(const std::string& text, std::string& value);
void read_value(const std::string& text, std::filesystem::path& value);
void read_value(const std::string& text, std::optional<std::filesystem::path>& value);
void read_value(const std::string& text, DType& value);
void read_value(const std::string& text, RowFormat& value);
inline void read_value(const std::string& text, AttendChoice& value) {
  value = parse_attend_choice(text);
}
inline void read_value(const std::string& text, Exchange& value) {
  value = parse_exchange(text);
}
inline void read_value(const std::string& text, MergeOrder& value) {
  value = parse_merge_order(text);
}
inline void read_value(const std::string& text, SpreadPolicy& value) {
  value = parse_spread_policy(text);
}
inline void read_value(const std::string& text, TransportChoice& value) {
  value = parse_transport_choice(text);
}

template <typename T>
requires std::is_arithmetic_v<T> std::string value_text(T value) {
  return fmt::format("{}", value);
}
inline std::string value_text(const std::string& value) {
  return value;
}
inline std::string value_text(const std::filesystem::path& value) {
  return value.string();
}
inline std::string value_text(const std::optional<std::filesystem::path>& value) {
  return value ? value->string() : "";
}
inline std::string value_text(DType value) {
  return std::string(dtype_name(value));
}
inline std::string value_text(RowFormat value) {
  return is_known(value) ? row_format_name(value) : "";
}
inline std::string value_text(AttendChoice value) {
  return std::string(attend_choice_name(value));
}
inline std::string value_text(Exchange value) {
  return std::string(exchange_name(value));
}
inline std::string value_text(MergeOrder value) {
  return std::string(merge_order_name(value));
}
inline std::string value_text(SpreadPolicy value) {
  return std::string(spread_policy_name(value));
}
inline std::string value_text(TransportChoice value) {
  return std::string(transport_choice_name(value));
}

/// The parts of `a,b`; one, empty, of an empty text.
[[nodiscard]] std::vector<std::string> parts_of(std::string_view list);

template <typename T>
void read_value(const std::string& text, std::vector<T>& values) {
  std::vector<T> read;
  for (const std::string& part : parts_of(text)) read_value(part, read.emplace_back());
  values = std::move(read);
}
template <typename T>
std::string value_text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) {
    if (!text.empty()) text += ',';
    text += value_text(value);
  }
  return text;
}

}  // namespace tributary
