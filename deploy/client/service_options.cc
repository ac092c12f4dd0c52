#include "deploy/client/service_options.h"

#include <fstream>
#include <iterator>

#include "core/base/error.h"

namespace tributary {
namespace {

/// The file's text without white space at its ends.
std::string read_token(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) fail(ErrorCode::kIo, "{}: the bearer token cannot be read", path);
  constexpr auto kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) fail(ErrorCode::kMalformedInput, "{}: holds no token", path);
  text = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (text.find_first_of(kSpace) != std::string::npos) {
    fail(ErrorCode::kMalformedInput, "{}: more than one token", path);
  }
  return text;
}

}  // namespace

TierClientConfig client_config(const ServiceOptions& options) {
  TierClientConfig config;
  config.url = options.url;
  if (!options.token_file.empty()) config.bearer_token = read_token(options.token_file);
  config.certificate_authority = options.certificate_authority;
  config.busy_poll = options.busy_poll;
  config.timeout = std::chrono::milliseconds(options.call_timeout_ms);
  return config;
}

}  // namespace tributary
