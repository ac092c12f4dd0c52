// The places of a transport for accepted connections: for strangers by the address that they come
// from, for proven peers by the id that they have proven.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>

#include "comm/transport/transport.h"

namespace tributary {

/// Who needs a place that is taken makes the oldest one go that may go of his own key if the key's
/// share is taken. If all places are, the key with the most gives one up, its oldest that may go or
/// else its oldest, as long as it keeps more than the newcomer's gets: a few keys that fill their
/// shares keep nobody out, and push nobody out. Otherwise the oldest of all goes that may go. Ids
/// of peers count up, so the lowest is the oldest.
class Places {
 public:
  Places(std::size_t all, std::size_t share) : all_(all), share_(share) {}

  struct Taken {
    bool ok = false;             // false: nobody may go; the newcomer has no place
    std::optional<PeerId> gone;  // has lost its place and is to be closed
    std::string why;             // one of them has none; empty where a place was free
  };
  /// Key 0 has no share of its own, and gives nothing up.
  [[nodiscard]] Taken take(PeerId peer, std::uint64_t key);
  /// The peer need not make room any more.
  void settle(PeerId peer) { may_go_.erase(peer); }
  /// Ignores who has no place.
  void leave(PeerId peer);

  [[nodiscard]] std::size_t size() const noexcept { return keys_.size(); }
  [[nodiscard]] bool contains(PeerId peer) const { return keys_.contains(peer); }
  [[nodiscard]] std::optional<PeerId> oldest() const;

 private:
  [[nodiscard]] std::size_t count_of(std::uint64_t key) const;
  [[nodiscard]] std::optional<PeerId> oldest_to_go(std::optional<std::uint64_t> key) const;
  /// The key with the most places, of those the lowest; 0 if there is none.
  [[nodiscard]] std::uint64_t largest() const;

  std::size_t all_;
  std::size_t share_;
  std::map<PeerId, std::uint64_t> keys_;
  std::unordered_map<std::uint64_t, std::size_t> of_key_;
  std::set<PeerId> may_go_;
};

/// The places for those who have proven nothing: no more than a quarter of the process's
/// descriptors.
[[nodiscard]] Places places_for_strangers(const TransportConfig& config);
/// The key of an IP address in network byte order, of 4 or 16 bytes. Of IPv6 the first 8 count: a
/// host has a network of 64 bits to itself.
[[nodiscard]] std::uint64_t address_key(std::span<const std::uint8_t> address) noexcept;

}  // namespace tributary
