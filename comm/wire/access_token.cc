#include "comm/wire/access_token.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "comm/wire/mac.h"
#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary::wire {

Token random_token() {
  Token token{};
  fill_random(token);
  return token;
}

Token access_token(const Token& key, std::uint64_t sequence_id) {
  std::array<std::uint8_t, sizeof(sequence_id)> id{};
  for (std::size_t i = 0; i < id.size(); ++i) {
    id.at(i) = static_cast<std::uint8_t>(sequence_id >> (8 * i));
  }
  const Mac whole = mac(key, id);
  Token token{};
  std::copy_n(whole.begin(), token.size(), token.begin());
  return token;
}

std::string token_text(const Token& token) {
  std::string text;
  for (const std::uint8_t byte : token) text += fmt::format("{:02x}", byte);
  return text;
}

Token parse_token(std::string_view text) {
  Token token{};
  const auto digit = [&](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    fail(ErrorCode::kMalformedInput, "token: {} is not 32 hexadecimal digits", quote(text));
  };
  if (text.size() != 2 * token.size()) {
    fail(ErrorCode::kMalformedInput, "token: {} characters, expected {}", text.size(),
         2 * token.size());
  }
  for (std::size_t i = 0; i < token.size(); ++i) {
    token.at(i) = static_cast<std::uint8_t>(16 * digit(text[2 * i]) + digit(text[2 * i + 1]));
  }
  return token;
}

}  // namespace tributary::wire
