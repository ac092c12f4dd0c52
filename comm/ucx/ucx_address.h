// "ADDRESS:PORT" and the socket address that it names.
#pragma once

#include <sys/socket.h>

#include <string>

namespace tributary::ucx {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/// Parses "10.0.0.1:7070" or "[fe80::1]:7070". Host names are refused: a lookup could take long.
/// Throws kInvalidArgument.
[[nodiscard]] SocketAddress parse_address(const std::string& text);
[[nodiscard]] std::string format_address(const sockaddr_storage& address);

/// Whether only this machine can reach the address.
[[nodiscard]] bool is_loopback(const SocketAddress& address);
/// The network device that has the address; empty if none has, as for 0.0.0.0.
[[nodiscard]] std::string device_of(const SocketAddress& address);

}  // namespace tributary::ucx
