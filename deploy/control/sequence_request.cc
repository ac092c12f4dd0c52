#include "deploy/control/sequence_request.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "deploy/tier/json_object.h"
#include "deploy/tier/sequence_json.h"

namespace tributary {

bool is_json_content(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return type.empty() || type == "application/json";
}

AdmissionRequest parse_sequence_request(std::string_view body, std::string_view idempotency_key) {
  const nlohmann::json value = parse_json(body, "body");
  JsonObject object(value, "body");
  AdmissionRequest request;
  request.prompt_tokens = object.integer<std::int64_t>("prompt_tokens", 0, kMaxSequenceTokens);
  request.max_new_tokens = object.integer<std::int64_t>("max_new_tokens", 0, kMaxSequenceTokens);
  if (request.prompt_tokens + request.max_new_tokens < 1) {
    fail(ErrorCode::kMalformedInput, "body: a sequence of 0 tokens");
  }
  if (object.has("spread")) {
    const std::string& name = object.text("spread", 16);
    try {
      request.spread = parse_spread_policy(name);
    } catch (const Error& error) {
      fail(ErrorCode::kMalformedInput, "body.spread: {}", error.what());
    }
  }
  object.end();
  check_idempotency_key(idempotency_key);
  request.idempotency_key = idempotency_key;
  return request;
}

void require_empty_body(std::string_view body) {
  if (body.empty()) return;
  const nlohmann::json value = parse_json(body, "body");
  JsonObject(value, "body").end();
}

}  // namespace tributary
