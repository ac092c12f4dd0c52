// Numeric addresses through getaddrinfo and getnameinfo.
#include "comm/ucx/ucx_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "core/base/error.h"

namespace tributary::ucx {
namespace {

bool is_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size();
}

bool same_host(const sockaddr* a, const SocketAddress& b) {
  if (a == nullptr || a->sa_family != b.storage.ss_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b.storage).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b.storage).sin6_addr,
                     sizeof(in6_addr)) == 0;
}

}  // namespace

SocketAddress parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);

  addrinfo hints{};
  hints.ai_family = bracketed ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (host.empty() || !is_port(port) ||
      getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    fail(ErrorCode::kInvalidArgument,
         "address '{}': expected A.B.C.D:PORT or [IPV6]:PORT, port 0 to 65535", text);
  }
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

std::string device_of(const SocketAddress& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  const bool loopback = is_loopback(address);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    // All of 127.0.0.0/8 is this machine, whichever address the device has.
    if (loopback ? (entry->ifa_flags & IFF_LOOPBACK) != 0 : same_host(entry->ifa_addr, address)) {
      return entry->ifa_name;
    }
  }
  return {};
}

bool is_loopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    return ntohl(v4.sin_addr.s_addr) >> 24U == IN_LOOPBACKNET;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

std::string format_address(const sockaddr_storage& address) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof(address), host.data(),
                  host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown address";
  }
  if (address.ss_family == AF_INET6) return fmt::format("[{}]:{}", host.data(), port.data());
  return fmt::format("{}:{}", host.data(), port.data());
}

}  // namespace tributary::ucx
