#include "deploy/service/worker/listen_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/pool/gather_all.h"
#include "deploy/runtime/host_name.h"

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
  int bits = 0;  // of its network
  bool loopback = false;
};

std::vector<DeviceAddress> own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail(ErrorCode::kIo, "the addresses of this machine: not readable");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<DeviceAddress> all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const auto bytes_of = [](const auto& address) {
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(&address);
      return Bytes(bytes, bytes + sizeof(address));
    };
    const auto keep = [&](const auto& address, const auto& mask) {
      int bits = 0;
      for (const std::uint8_t byte : bytes_of(mask)) bits += std::popcount(byte);
      all.push_back(
          {entry->ifa_name, bytes_of(address), bits, (entry->ifa_flags & IFF_LOOPBACK) != 0});
    };
    if (entry->ifa_netmask == nullptr) continue;
    if (entry->ifa_addr->sa_family == AF_INET) {
      keep(reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr,
           reinterpret_cast<const sockaddr_in*>(entry->ifa_netmask)->sin_addr);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      // A link-local address is useful only with the name of a device, which clients do not have.
      if (IN6_IS_ADDR_LINKLOCAL(&v6)) continue;
      keep(v6, reinterpret_cast<const sockaddr_in6*>(entry->ifa_netmask)->sin6_addr);
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
  for (const DeviceAddress& own : own_addresses()) {
    const std::string name = format(own.address);
    have += fmt::format("{}{} {}", have.empty() ? "" : ", ", own.device, name);
    if (network ? begins_alike(own.address, network->prefix, network->bits) : own.device == text) {
      (own.address.size() == sizeof(in_addr) ? v4 : v6).insert(name);
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

namespace {

/// A machine's addresses that others may reach; more than so many do not take part.
struct HostAddresses {
  struct Entry {
    std::array<std::uint8_t, sizeof(in6_addr)> address{};
    std::int32_t size = 0;  // of the address; 0: none
    std::int32_t bits = 0;

    [[nodiscard]] Bytes bytes() const { return {address.begin(), address.begin() + size}; }
    bool operator==(const Entry&) const = default;
  };
  Text name{};
  std::array<Entry, 16> entries{};

  bool operator==(const HostAddresses&) const = default;

  /// Its address in the network of `other`; null without one.
  [[nodiscard]] const Entry* in_network_of(const Entry& other) const {
    const auto found = std::ranges::find_if(entries, [&](const Entry& entry) {
      return entry.size == other.size && begins_alike(entry.bytes(), other.bytes(), other.bits);
    });
    return found == entries.end() ? nullptr : &*found;
  }
};

HostAddresses own_host() {
  HostAddresses host;
  set_text(host.name, host_name());
  std::size_t count = 0;
  for (const DeviceAddress& own : own_addresses()) {
    if (own.loopback || count == host.entries.size()) continue;
    HostAddresses::Entry& entry = host.entries[count++];
    std::ranges::copy(own.address, entry.address.begin());
    entry.size = static_cast<std::int32_t>(own.address.size());
    entry.bits = own.bits;
  }
  return host;
}

/// Whether every host has an address in the network of `entry`, and no two hosts the same one:
/// bridges of containers have one address everywhere.
bool joins(const std::vector<HostAddresses>& hosts, const HostAddresses::Entry& entry) {
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const HostAddresses::Entry* mine = hosts[r].in_network_of(entry);
    if (mine == nullptr) return false;
    for (std::size_t other = 0; other < r; ++other) {
      if (hosts[other] == hosts[r]) continue;
      if (*hosts[other].in_network_of(entry) == *mine) return false;
    }
  }
  return true;
}

}  // namespace

std::string with_port(const std::string& host, std::string_view port) {
  const bool bare_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return bare_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::string advertised_address(const std::string& host, const std::string& bound) {
  if (host.empty()) return bound;
  return bound.substr(0, bound.find("//") + 2) +
         with_port(host, std::string_view(bound).substr(bound.rfind(':') + 1));
}

std::string shared_address(Communicator& communicator, Deadline deadline) {
  const HostAddresses mine = own_host();
  std::vector<HostAddresses> hosts;
  gather_all(communicator, mine, hosts, deadline).throw_if_error();
  if (std::ranges::all_of(hosts, [&](const HostAddresses& other) { return other == mine; })) {
    return "127.0.0.1";
  }
  for (const HostAddresses::Entry& entry : hosts.front().entries) {
    if (entry.size > 0 && joins(hosts, entry)) return format(mine.in_network_of(entry)->bytes());
  }
  fail(ErrorCode::kInvalidArgument,
       "the machines of the workers have no network in common with that of worker 0: name one with "
       "--listen");
}

}  // namespace tributary
