// Fuzz target: any bytes as a URL, as an address to listen on, and as the target of a request.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "comm/http/http_text.h"
#include "comm/http/url.h"
#include "core/base/error.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

/// Bytes may be refused with kInvalidArgument, and with no other error.
template <typename Parse>
void check(const Parse& parse) {
  try {
    parse();
  } catch (const tributary::Error& error) {
    require(error.code() == tributary::ErrorCode::kInvalidArgument);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check([&] {
    const tributary::Url url = tributary::parse_url(text);
    require(!url.host.empty() && url.port >= 1 && url.port <= 65535 && url.path.starts_with('/'));
    require(url.path.find_first_of("?# \r\n") == std::string::npos);
  });
  check([&] {
    const tributary::HostPort parts = tributary::parse_host_port(text);
    require(!parts.host.empty() && parts.port >= 0 && parts.port <= 65535);
    require(parts.host.find_first_of("@/[] \r\n") == std::string::npos);
  });
  if (const auto target = tributary::parse_target(text)) {
    require(target->path.starts_with('/') && target->path.find('\0') == std::string::npos);
    require(target->path.size() + target->query.size() <= size);
  }
  return 0;
}
