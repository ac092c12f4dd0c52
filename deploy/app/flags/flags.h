// Flags of a program. Each has one meaning, one range and one default; the help shows them, and the
// parser enforces them.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/row_format.h"
#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/transport/transport_choice.h"

namespace tributary {

/// Parses the whole `text` as a number in low .. high. Throws kInvalidArgument; NaN lies in no
/// range.
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

/// The range as text: `1 to 1024`. An end that only keeps arithmetic from overflowing is left out.
template <typename T>
[[nodiscard]] std::string range_text(T low, T high) {
  constexpr double kNobodyAsksForMore = 1e8;
  return static_cast<double>(high) >= kNobodyAsksForMore ? fmt::format("{} or more", low)
                                                         : fmt::format("{} to {}", low, high);
}

/// A value as the text that its flag takes; empty if it has none.
[[nodiscard]] inline std::string flag_text(const std::string& value) {
  return value;
}
[[nodiscard]] inline std::string flag_text(const std::filesystem::path& value) {
  return value.string();
}
[[nodiscard]] inline std::string flag_text(const std::optional<std::filesystem::path>& value) {
  return value ? value->string() : "";
}
[[nodiscard]] inline std::string flag_text(DType value) {
  return std::string(dtype_name(value));
}
[[nodiscard]] inline std::string flag_text(RowFormat value) {
  return std::string(row_format_name(value));
}
[[nodiscard]] inline std::string flag_text(Exchange value) {
  return std::string(exchange_name(value));
}
[[nodiscard]] inline std::string flag_text(MergeOrder value) {
  return std::string(merge_order_name(value));
}
[[nodiscard]] inline std::string flag_text(AttendChoice value) {
  return std::string(attend_choice_name(value));
}
[[nodiscard]] inline std::string flag_text(SpreadPolicy value) {
  return std::string(spread_policy_name(value));
}
[[nodiscard]] inline std::string flag_text(TransportChoice value) {
  return std::string(transport_choice_name(value));
}
template <typename T>
requires std::is_arithmetic_v<T>
[[nodiscard]] std::string flag_text(T value) {
  return fmt::format("{}", value);
}

/// A flag whose text `parse` turns into a value; its Error, which may begin with a verb, becomes
/// the flag's. `value` is what the help calls the text (`N`, `FILE`, `auto|single|all`).
template <typename Target, typename Parse>
CLI::Option* add_flag(CLI::App& app, const std::string& name, const std::string& value,
                      Target& target, Parse parse, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&target, parse, name](const std::string& text) {
            try {
              target = parse(text);
            } catch (const Error& error) {
              throw CLI::ValidationError(fmt::format("{}: {}", name, error.what()));
            }
          },
          help)
      ->option_text(value)
      ->default_str(flag_text(target));
}

/// A number in low .. high. `shown_default` appears in the help; by default it is the target's
/// value.
template <typename T>
CLI::Option* add_number(CLI::App& app, const std::string& name, T& target, T low, T high,
                        const std::string& help, const std::string& shown_default = {}) {
  return add_flag(
      app, name, std::is_floating_point_v<T> ? "X" : "N", target,
      [low, high](const std::string& text) { return parse_number<T>(text, low, high); },
      fmt::format("{} ({}; default {})", help, range_text(low, high),
                  shown_default.empty() ? fmt::format("{}", target) : shown_default));
}

}  // namespace tributary
