#include "comm/wire/access_token.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "core/base/quote.h"

namespace tributary::wire {

Token random_token() {
  Token token{};
  if (RAND_bytes(token.data(), static_cast<int>(token.size())) != 1) {
    fail(ErrorCode::kIo, "the operating system gives no random bytes");
  }
  return token;
}

Token access_token(const Token& key, std::uint64_t sequence_id) {
  std::array<unsigned char, sizeof(sequence_id)> id{};
  for (std::size_t i = 0; i < id.size(); ++i) {
    id.at(i) = static_cast<unsigned char>(sequence_id >> (8 * i));
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), id.data(), id.size(),
           digest.data(), &size) == nullptr) {
    fail(ErrorCode::kInternal, "HMAC-SHA-256 failed");
  }
  Token token{};
  std::copy_n(digest.begin(), token.size(), token.begin());
  return token;
}

bool same_token(const Token& a, const Token& b) noexcept {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
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
