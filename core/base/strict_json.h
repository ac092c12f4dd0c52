// JSON from outside: one value, bounded depth, no duplicate keys, finite numbers, valid UTF-8.
// Included by .cc files alone, since it shows the JSON library.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tributary {

/// Deeper nesting is refused. Nothing that we read nests more than 6 levels; the bound keeps a
/// file of brackets from taking many times its size in memory.
inline constexpr int kMaxJsonDepth = 32;

/// Throws Error(kMalformedInput) with a message that starts with `source`.
[[nodiscard]] nlohmann::json parse_strict_json(std::string_view text, std::string_view source);

/// The library treats a NUL as the end of the text and ignores the rest; JSON allows no NUL.
void refuse_nul(std::string_view text, std::string_view source);

/// The library's message without its internal prefix, escaped and cut.
[[nodiscard]] std::string json_error_text(const nlohmann::json::exception& error);

}  // namespace tributary
