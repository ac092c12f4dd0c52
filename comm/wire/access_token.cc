#include "comm/wire/access_token.h"

#include <algorithm>
#include <array>

#include "comm/wire/mac.h"
#include "core/base/error.h"
#include "core/base/hex.h"

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
  return hex_text({reinterpret_cast<const char*>(token.data()), token.size()});
}

Token parse_token(std::string_view text) {
  Token token{};
  if (text.size() != 2 * token.size()) {
    fail(ErrorCode::kMalformedInput, "token: {} characters, expected {}", text.size(),
         2 * token.size());
  }
  std::ranges::copy(parse_hex(text, "token"), token.begin());
  return token;
}

}  // namespace tributary::wire
