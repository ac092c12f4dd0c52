#include "deploy/control/bearer_auth.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>

#include "comm/http/http_server.h"
#include "core/base/error.h"

namespace tributary {

namespace {

constexpr std::size_t kMinTokenChars = 16;  // 64 bits where it is hexadecimal
constexpr std::size_t kMaxTokenChars = 4096;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

}  // namespace

std::string read_token_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kIo, "token file {}: cannot be read", path);
  std::string token;
  // One character more than fits: enough to see that it is too long.
  constexpr std::size_t kMaxFile = 2 * kMaxTokenChars;
  for (char c = 0; token.size() <= kMaxFile && file.get(c);) token += c;
  if (file.bad()) fail(ErrorCode::kIo, "token file {}: cannot be read", path);
  while (!token.empty() && is_space(token.back())) token.pop_back();
  token.erase(token.begin(), std::find_if_not(token.begin(), token.end(), is_space));
  if (token.size() < kMinTokenChars || token.size() > kMaxTokenChars) {
    fail(ErrorCode::kInvalidArgument, "token file {}: {} characters, not {} .. {}", path,
         token.size(), kMinTokenChars, kMaxTokenChars);
  }
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
    fail(ErrorCode::kInvalidArgument,
         "token file {}: holds something else than one line of printable ASCII", path);
  }
  return token;
}

void check_exposure(const std::string& listen, bool has_token) {
  if (has_token || is_loopback(listen)) return;
  fail(ErrorCode::kInvalidArgument,
       "listen address {} can be reached from other machines, and without a token anybody there "
       "could use and drain the tier: name a token file (--token-file), or listen on 127.0.0.1",
       listen);
}

bool is_authorized(std::string_view authorization, std::string_view token) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size() ||
      !std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), [](char a, char b) {
        return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
      })) {
    return false;
  }
  const std::string_view given = authorization.substr(kScheme.size());
  // Every character of the given one is looked at, whatever the earlier ones were.
  unsigned difference = given.size() == token.size() ? 0U : 1U;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = token[i % token.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected);
  }
  return difference == 0;
}

}  // namespace tributary
