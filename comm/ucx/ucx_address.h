// "ADDRESS:PORT" and the socket address that it names.
#pragma once

#include <sys/socket.h>

#include <string>

namespace tributary::ucx {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/// "10.0.0.1:7070" or "[fe80::1]:7070"; names are not looked up, which could take long. Throws
/// kInvalidArgument.
[[nodiscard]] SocketAddress parse_address(const std::string& text);
[[nodiscard]] std::string format_address(const sockaddr_storage& address);

/// The network device of an address that only this machine can reach; empty for any other address.
[[nodiscard]] std::string loopback_device(const SocketAddress& address);

}  // namespace tributary::ucx
