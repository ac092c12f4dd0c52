#include "deploy/service/worker/listen_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace tributary {
namespace {

/// An address as its bytes, 4 or 16.
using Bytes = std::vector<std::uint8_t>;

std::optional<Bytes> parse(const std::string& text) {
  Bytes bytes(sizeof(in6_addr));
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return bytes;
  bytes.resize(sizeof(in_addr));
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) return bytes;
  return std::nullopt;
}

std::string format(const Bytes& bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(bytes.size() == sizeof(in_addr) ? AF_INET : AF_INET6, bytes.data(), text.data(),
            text.size());
  return text.data();
}

bool begins_alike(const Bytes& a, const Bytes& b, int bits) {
  if (a.size() != b.size()) return false;
  const auto whole = static_cast<std::size_t>(bits / 8);
  if (!std::equal(a.begin(), a.begin() + bits / 8, b.begin())) return false;
  const int rest = bits % 8;
  return rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

struct Network {
  Bytes prefix;
  int bits = 0;
};

std::optional<Network> parse_network(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  const auto prefix = parse(text.substr(0, slash));
  const std::string_view digits = std::string_view(text).substr(slash + 1);
  int bits = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
  if (!prefix || error != std::errc() || end != digits.data() + digits.size() || bits < 0 ||
      bits > static_cast<int>(prefix->size()) * 8) {
    fail(ErrorCode::kInvalidArgument,
         "listen address '{}': a network is ADDRESS/BITS with 0 to 32 bits, or 128 for IPv6", text);
  }
  return Network{*prefix, bits};
}

struct DeviceAddress {
  std::string device;
  Bytes address;
};

std::vector<DeviceAddress> own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail(ErrorCode::kIo, "the addresses of this machine: not readable");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<DeviceAddress> all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const auto keep = [&](const auto& address) {
      const auto bytes =
          std::span(reinterpret_cast<const std::uint8_t*>(&address), sizeof(address));
      all.push_back({entry->ifa_name, Bytes(bytes.begin(), bytes.end())});
    };
    if (entry->ifa_addr->sa_family == AF_INET) {
      keep(reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      // A link-local address is useful only with the name of a device, which clients do not have.
      if (!IN6_IS_ADDR_LINKLOCAL(&v6)) keep(v6);
    }
  }
  return all;
}

}  // namespace

std::string local_address(const std::string& text) {
  const auto network = parse_network(text);
  if (!network && parse(text)) return text;

  std::set<std::string> v4, v6;
  std::string have;
  for (const auto& [device, address] : own_addresses()) {
    const std::string name = format(address);
    have += fmt::format("{}{} {}", have.empty() ? "" : ", ", device, name);
    if (network ? begins_alike(address, network->prefix, network->bits) : device == text) {
      (address.size() == sizeof(in_addr) ? v4 : v6).insert(name);
    }
  }
  const std::set<std::string>& found = v4.empty() ? v6 : v4;
  if (found.size() != 1) {
    fail(ErrorCode::kInvalidArgument,
         "listen address '{}': {} addresses of this machine match, expected 1; it has {}", text,
         found.size(), have);
  }
  return *found.begin();
}

}  // namespace tributary
