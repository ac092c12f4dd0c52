#include "comm/tcp/tcp_address.h"

#include "comm/http/url.h"
#include "core/base/error.h"

namespace tributary::tcp {

boost::asio::ip::tcp::endpoint parse_address(const std::string& text) {
  boost::system::error_code error;
  boost::asio::ip::tcp::endpoint endpoint;
  const Status parsed = status_of([&] {
    const HostPort parts = parse_host_port(text);
    endpoint = {boost::asio::ip::make_address(parts.host, error),
                static_cast<std::uint16_t>(parts.port)};
  });
  if (!parsed.ok() || error) {
    fail(ErrorCode::kInvalidArgument,
         "address '{}': expected A.B.C.D:PORT or [IPV6]:PORT, port 0 to 65535", text);
  }
  return endpoint;
}

}  // namespace tributary::tcp
