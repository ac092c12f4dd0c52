// Typed access to the keys of a JSON object from outside. Included by .cc files alone, since it
// shows the JSON library.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tributary {

/// Published files have 2 KiB, or 3 MB where they list all modules that are not quantised; the
/// bound keeps a wrong path from filling the memory.
inline constexpr std::size_t kMaxConfigBytes = std::size_t{8} << 20;

/// The text of a file, at most kMaxConfigBytes + 1 bytes, so that parsers notice a longer one.
/// Throws kIo, also for a directory.
[[nodiscard]] std::string read_config_text(const std::filesystem::path& path);
/// Infinity and NaN, which Python writes and JSON lacks, become strings: no key of ours has them.
/// Throws kMalformedInput, as parse_strict_json does, for more than kMaxConfigBytes, and for a Git
/// LFS pointer or an HTML page.
[[nodiscard]] nlohmann::json parse_config_text(std::string_view text, std::string_view source);

/// A view of one object; null counts as absent. Messages start with `where` and name the key.
/// Absent and mistyped values throw kMalformedInput unless a default is given. An integer may be
/// written 163840.0.
class ConfigKeys {
 public:
  using Json = nlohmann::json;

  ConfigKeys(const Json& object, std::string where);

  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const Json& object() const { return object_; }

  [[nodiscard]] const Json* find(const char* key) const;
  [[nodiscard]] const Json& require(const char* key) const;
  [[nodiscard]] int integer(const char* key) const { return to_int(key, require(key)); }
  [[nodiscard]] int integer(const char* key, int absent) const;
  [[nodiscard]] double number(const char* key) const { return to_double(key, require(key)); }
  [[nodiscard]] double number(const char* key, double absent) const;
  [[nodiscard]] bool boolean(const char* key, bool absent) const;
  [[nodiscard]] const std::string& text(const char* key) const;

  /// Throws kUnsupported for the value of `key`.
  [[noreturn]] void unsupported(const char* key, std::string_view supported) const;

 private:
  [[noreturn]] void mistyped(const char* key, const Json& value, std::string_view wanted) const;
  [[nodiscard]] int to_int(const char* key, const Json& value) const;
  [[nodiscard]] double to_double(const char* key, const Json& value) const;

  const Json& object_;
  std::string where_;
};

/// The keys about text: those of `text_config` in a model that sees, else the document's.
[[nodiscard]] ConfigKeys text_keys(const nlohmann::json& document, std::string_view source);

/// A value as messages show it: quoted, and cut if it is long.
[[nodiscard]] std::string shown(const nlohmann::json& value);

}  // namespace tributary
