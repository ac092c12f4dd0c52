// JSON from outside: one value, bounded depth, no duplicate keys, finite numbers, valid UTF-8.
#include "core/base/strict_json.h"

#include <set>
#include <vector>

#include "core/base/check_json.h"
#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {

std::string json_error_text(const nlohmann::json::exception& error) {
  std::string_view text = error.what();  // "[json.exception.parse_error.101] parse error at ..."
  if (const auto end = text.find("] "); end != std::string_view::npos) text.remove_prefix(end + 2);
  return quote(text, 200);
}

void refuse_nul(std::string_view text, std::string_view source) {
  if (const auto at = text.find('\0'); at != std::string_view::npos) {
    fail(ErrorCode::kMalformedInput, "{}: not valid JSON: NUL at byte {}", source, at);
  }
}

nlohmann::json parse_strict_json(std::string_view text, std::string_view source) {
  refuse_nul(text, source);
  // The library keeps the last of two equal keys; we cannot know which one was meant.
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMaxJsonDepth) {
      fail(ErrorCode::kMalformedInput, "{}: JSON nests deeper than {} levels", source,
           kMaxJsonDepth);
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto [key, is_new] = keys.back().insert(parsed.get<std::string>());
      if (!is_new) {
        fail(ErrorCode::kMalformedInput, "{}: JSON key {} occurs twice", source, quote(*key));
      }
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kMalformedInput, "{}: not valid JSON: {}", source, json_error_text(error));
  }
}

void check_strict_json(std::string_view text, std::string_view source) {
  static_cast<void>(parse_strict_json(text, source));
}

}  // namespace tributary
