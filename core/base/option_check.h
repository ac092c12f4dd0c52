// The ranges of a table of options (option.h), for options that no command line has checked.
#pragma once

#include <bit>
#include <concepts>
#include <string_view>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/option.h"

namespace tributary {

class OptionCheck {
 public:
  [[nodiscard]] OptionCheck with(const OptionNotes& /*notes*/) const { return *this; }

  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(const T& field, std::string_view name, OptionRange<std::type_identity_t<T>> range,
                  std::string_view /*help*/, const OptionNotes& /*notes*/ = {}) const {
    if (!(field >= range.low && field <= range.high)) {  // so that NaN fails
      fail(ErrorCode::kInvalidArgument, "{} is {}: not in {} .. {}", name, field, range.low,
           range.high);
    }
  }
  template <std::same_as<PowersOfTwo> Range>
  void operator()(int field, std::string_view name, Range range, std::string_view help,
                  const OptionNotes& notes = {}) const {
    (*this)(field, name, OptionRange<int>{range.low, range.high}, help, notes);
    if (!std::has_single_bit(static_cast<unsigned>(field))) {
      fail(ErrorCode::kInvalidArgument, "{} is {}: not a power of two", name, field);
    }
  }
  /// Switches and values that are no numbers have no range.
  void operator()(bool /*field*/, std::string_view /*name*/, std::string_view /*help*/,
                  const OptionNotes& /*notes*/ = {}) const {}
  template <typename T>
  requires(!std::is_arithmetic_v<T>) void operator()(const T& /*field*/, std::string_view /*name*/,
                                                     std::string_view /*value*/,
                                                     std::string_view /*help*/,
                                                     const OptionNotes& /*notes*/ = {}) const {}
};

/// Throws kInvalidArgument with the name of the first number that is out of its range.
template <class Options>
void check_ranges(Options options) {
  OptionCheck check;
  options.for_each_option(check);
}

}  // namespace tributary
