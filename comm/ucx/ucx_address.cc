// Numeric addresses through getaddrinfo and getnameinfo.
#include "comm/ucx/ucx_address.h"

#include <arpa/inet.h>
#include <linux/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "core/base/error.h"

namespace tributary::ucx {
namespace {

bool is_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size();
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

std::string loopback_device(const SocketAddress& address) {
  bool loopback = false;
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    loopback = ntohl(v4.sin_addr.s_addr) >> 24U == IN_LOOPBACKNET;
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    loopback = IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
  }
  if (!loopback) return {};
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  std::array<ifreq, 64> interfaces{};
  ifconf list{};
  list.ifc_len = sizeof(interfaces);
  list.ifc_req = interfaces.data();
  std::string name;
  if (fd >= 0 && ioctl(fd, SIOCGIFCONF, &list) == 0) {
    const std::size_t count = static_cast<std::size_t>(list.ifc_len) / sizeof(ifreq);
    for (ifreq& entry : std::span(interfaces).first(count)) {
      if (!name.empty() || ioctl(fd, SIOCGIFFLAGS, &entry) != 0) continue;
      if ((entry.ifr_flags & IFF_LOOPBACK) != 0) name = entry.ifr_name;
    }
  }
  if (fd >= 0) close(fd);
  return name;
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
