#include "core/model/config_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/base/strict_json.h"
#include "core/model/foreign_file.h"

namespace tributary {

std::string shown(const nlohmann::json& value) {
  return quote(value.dump(), 60);
}

namespace {

/// Puts Infinity, -Infinity and NaN between quotes where they stand outside of strings.
std::string quote_non_finite(std::string_view text) {
  constexpr std::array<std::string_view, 3> kNonFinite{"Infinity", "-Infinity", "NaN"};
  std::string quoted;
  quoted.reserve(text.size() + 16);
  bool in_string = false;
  while (!text.empty()) {
    std::size_t length = 1;
    if (in_string) {
      if (text.front() == '\\') length = std::min<std::size_t>(2, text.size());
      in_string = text.front() != '"';
    } else {
      in_string = text.front() == '"';
      const auto it = std::ranges::find_if(
          kNonFinite, [&](std::string_view token) { return text.starts_with(token); });
      if (it != kNonFinite.end()) {
        length = it->size();
        quoted.append("\"").append(*it).append("\"");
        text.remove_prefix(length);
        continue;
      }
    }
    quoted.append(text.substr(0, length));
    text.remove_prefix(length);
  }
  return quoted;
}

}  // namespace

std::string read_config_text(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const bool of_model = std::filesystem::exists(path / "config.json", ignored);
    fail(ErrorCode::kIo, "{}: is a directory{}", path.string(),
         of_model ? "; the file is its config.json" : "");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kIo, "{}: cannot be opened", path.string());
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail(ErrorCode::kIo, "{}: cannot be read", path.string());
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

nlohmann::json parse_config_text(std::string_view text, std::string_view source) {
  if (text.size() > kMaxConfigBytes) {
    fail(ErrorCode::kMalformedInput, "{}: {} bytes, a model config has at most {}", source,
         text.size(), kMaxConfigBytes);
  }
  if (const std::string_view other = foreign_file(text); !other.empty()) {
    fail(ErrorCode::kMalformedInput, "{}: is {}", source, other);
  }
  return parse_strict_json(quote_non_finite(text), source);
}

ConfigKeys text_keys(const nlohmann::json& document, std::string_view source) {
  ConfigKeys file(document, std::string(source));
  if (file.find("text_config") == nullptr) return file;
  return {file.require("text_config"), file.where() + ": text_config"};
}

ConfigKeys::ConfigKeys(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object.is_object()) {
    fail(ErrorCode::kMalformedInput, "{} is {}, must be a JSON object", where_, shown(object));
  }
}

const ConfigKeys::Json* ConfigKeys::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const ConfigKeys::Json& ConfigKeys::require(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) fail(ErrorCode::kMalformedInput, "{}: {} is missing", where_, key);
  return *value;
}

int ConfigKeys::integer(const char* key, int absent) const {
  const Json* value = find(key);
  return value == nullptr ? absent : to_int(key, *value);
}

double ConfigKeys::number(const char* key, double absent) const {
  const Json* value = find(key);
  return value == nullptr ? absent : to_double(key, *value);
}

bool ConfigKeys::boolean(const char* key, bool absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) mistyped(key, *value, "true or false");
  return value->get<bool>();
}

const std::string& ConfigKeys::text(const char* key) const {
  const Json& value = require(key);
  if (!value.is_string()) mistyped(key, value, "a string");
  return value.get_ref<const std::string&>();
}

void ConfigKeys::unsupported(const char* key, std::string_view supported) const {
  fail(ErrorCode::kUnsupported, "{}: {} is {}; supported: {}", where_, key, shown(object_.at(key)),
       supported);
}

void ConfigKeys::mistyped(const char* key, const Json& value, std::string_view wanted) const {
  fail(ErrorCode::kMalformedInput, "{}: {} is {}, must be {}", where_, key, shown(value), wanted);
}

int ConfigKeys::to_int(const char* key, const Json& value) const {
  // Compared in the type in which it is stored: a value beyond 2^63 must not wrap into the range.
  constexpr int kMax = std::numeric_limits<int>::max();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::trunc(number) && std::abs(number) <= kMax) return static_cast<int>(number);
  }
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMax)
                        : value.is_number_integer() &&
                              value.get<std::int64_t>() >= std::numeric_limits<int>::min();
  if (!fits) mistyped(key, value, "an integer of at most 31 bits");
  return value.get<int>();
}

double ConfigKeys::to_double(const char* key, const Json& value) const {
  if (!value.is_number()) mistyped(key, value, "a number");
  return value.get<double>();
}

}  // namespace tributary
