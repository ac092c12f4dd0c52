#include "deploy/service/control/bearer_auth.h"

#include <algorithm>
#include <cctype>

#include "comm/http/http_server.h"
#include "core/base/error.h"

namespace tributary {

void check_exposure(const std::string& listen, bool has_token) {
  if (has_token || is_loopback(listen)) return;
  fail(ErrorCode::kInvalidArgument,
       "listen address {} can be reached from other machines, and without a token anybody there "
       "could use and drain the tier: name a token file (--token-file), or listen on 127.0.0.1",
       listen);
}

bool is_local_host(std::string_view host) {
  if (host.empty() || host == "[::1]" || host.starts_with("[::1]:")) return true;
  std::string name(host.substr(0, host.find(':')));
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  // No name of the DNS ends in a number.
  const bool is_v4 = std::all_of(name.begin(), name.end(),
                                 [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
  return name == "localhost" || (is_v4 && name.starts_with("127."));
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
  // Every character is compared, even after a difference: the time must not tell how many match.
  unsigned difference = given.size() == token.size() ? 0U : 1U;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = token[i % token.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected);
  }
  return difference == 0;
}

}  // namespace tributary
