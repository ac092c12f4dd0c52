#include "deploy/service/control/request_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <system_error>

#include "core/base/quote.h"
#include "core/base/strict_json.h"
#include "deploy/service/protocol/json_object.h"
#include "deploy/service/protocol/sequence_json.h"

namespace tributary {

bool is_json_content(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return type.empty() || type == "application/json";
}

std::string parse_pool_query(std::string_view query) {
  if (query.empty()) return {};
  constexpr std::string_view kPool = "pool=";
  if (!query.starts_with(kPool)) {
    fail(ErrorCode::kMalformedInput, "query {}: not pool=NAME", quote(query));
  }
  query.remove_prefix(kPool.size());
  check_pool_name(query);
  return std::string(query);
}

int parse_rank(std::string_view text) {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc{} || end != text.data() + text.size() || rank < 0) {
    fail(ErrorCode::kMalformedInput, "worker {}: not a rank, 0 or more", quote(text, 24));
  }
  return rank;
}

void require_empty_body(std::string_view body) {
  if (body.empty()) return;
  const nlohmann::json value = parse_strict_json(body, "body");
  JsonObject(value, "body").end();
}

}  // namespace tributary
