// Reads JSON from outside: a value that follows its format exactly, or kMalformedInput with a
// message that names the field, the value and the bound. For .cc files of deploy/ only, since it
// shows the JSON library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/strict_json.h"

namespace tributary {

/// Text for the wire. Strings lose bytes that are not UTF-8; numbers that are not finite become
/// null.
[[nodiscard]] std::string json_text(const nlohmann::json& value);

/// The fields of one object. Every field must be present and be asked for: end() refuses the
/// others.
class JsonObject {
 public:
  /// `what` names the object in messages. Keeps a reference to `value`.
  JsonObject(const nlohmann::json& value, std::string_view what);

  [[nodiscard]] bool has(std::string_view field) const;
  template <typename Integer>
  [[nodiscard]] Integer integer(std::string_view field,
                                Integer min = std::numeric_limits<Integer>::min(),
                                Integer max = std::numeric_limits<Integer>::max()) {
    static_assert(std::is_integral_v<Integer>);
    if constexpr (std::is_signed_v<Integer>) {
      return static_cast<Integer>(read_signed(field, min, max));
    } else {
      return static_cast<Integer>(read_unsigned(field, min, max));
    }
  }
  [[nodiscard]] double number(std::string_view field);
  /// As number(), but null is NaN, for which json_text() writes null.
  [[nodiscard]] double number_or_nan(std::string_view field);
  [[nodiscard]] bool boolean(std::string_view field);
  [[nodiscard]] const std::string& text(std::string_view field, std::size_t max_bytes);
  [[nodiscard]] const nlohmann::json& array(std::string_view field, std::size_t max_size);
  [[nodiscard]] const nlohmann::json& value(std::string_view field);
  [[nodiscard]] std::string path(std::string_view field) const;
  void end() const;

 private:
  [[nodiscard]] std::int64_t read_signed(std::string_view field, std::int64_t min,
                                         std::int64_t max);
  [[nodiscard]] std::uint64_t read_unsigned(std::string_view field, std::uint64_t min,
                                            std::uint64_t max);

  const nlohmann::json& object_;
  std::string what_;
  std::vector<const nlohmann::json*> seen_;  // values that were asked for
};

}  // namespace tributary
