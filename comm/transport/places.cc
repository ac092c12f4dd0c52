#include "comm/transport/places.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>

namespace tributary {
namespace {

/// IPv4 as IPv6 writes it, the first 12 of 16 bytes.
constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
/// A TLS handshake holds some 50 KB, a plain one a socket and a kilobyte.
constexpr std::size_t kMostWithTls = 512;
constexpr std::size_t kShareOfAddress = 8;  // an eighth

}  // namespace

Places::Taken Places::take(PeerId peer, std::uint64_t key) {
  Taken taken;
  const std::size_t mine = key == 0 ? 0 : count_of(key);
  if (key != 0 && mine >= share_) {
    taken.why = fmt::format("{} has {} connections, the most that one may have", key, mine);
    taken.gone = oldest_to_go(key);
  } else if (keys_.size() >= all_) {
    taken.why = fmt::format("no place was free for {}: all {} are taken", key, all_);
    const std::uint64_t most = largest();
    if (const std::size_t theirs = count_of(most); most != 0 && theirs > mine + 1) {
      taken.why += fmt::format("; {} has {} of them, the most, and gives one up", most, theirs);
      taken.gone = oldest_to_go(most);
      if (!taken.gone)
        taken.gone =
            std::ranges::find(keys_, most, [](const auto& one) { return one.second; })->first;
    } else {
      taken.gone = oldest_to_go({});
    }
  }
  if (!taken.why.empty() && !taken.gone) return taken;
  if (taken.gone) leave(*taken.gone);
  taken.ok = true;
  keys_.emplace(peer, key);
  ++of_key_[key];
  may_go_.insert(peer);
  return taken;
}

std::size_t Places::count_of(std::uint64_t key) const {
  const auto found = of_key_.find(key);
  return found == of_key_.end() ? 0 : found->second;
}

std::uint64_t Places::largest() const {
  std::uint64_t most = 0;
  for (const auto& [key, count] : of_key_) {
    if (key == 0) continue;
    const std::size_t before = most == 0 ? 0 : of_key_.at(most);
    if (count > before || (count == before && key < most)) most = key;
  }
  return most;
}

void Places::leave(PeerId peer) {
  const auto found = keys_.find(peer);
  if (found == keys_.end()) return;
  const auto count = of_key_.find(found->second);
  if (--count->second == 0) of_key_.erase(count);
  keys_.erase(found);
  may_go_.erase(peer);
}

std::optional<PeerId> Places::oldest() const {
  return keys_.empty() ? std::nullopt : std::optional(keys_.begin()->first);
}

std::optional<PeerId> Places::oldest_to_go(std::optional<std::uint64_t> key) const {
  const auto found =
      std::ranges::find_if(may_go_, [&](PeerId peer) { return !key || keys_.at(peer) == *key; });
  return found == may_go_.end() ? std::nullopt : std::optional(*found);
}

Places places_for_strangers(const TransportConfig& config) {
  auto all = static_cast<std::size_t>(std::max(config.max_strangers, 1));
  if (config.tls) all = std::min(all, kMostWithTls);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    all = std::clamp<std::size_t>(limit.rlim_cur / 4, 1, all);
  }
  return {all, std::max<std::size_t>(all / kShareOfAddress, 1)};
}

std::uint64_t address_key(std::span<const std::uint8_t> address) noexcept {
  if (address.size() == 16 && std::ranges::equal(address.first(kMapped.size()), kMapped)) {
    address = address.subspan(kMapped.size());
  }
  std::uint64_t key = 1;
  for (const std::uint8_t byte : address.first(std::min<std::size_t>(address.size(), 8))) {
    key = key << 8 | byte;
  }
  return std::max<std::uint64_t>(key, 1);  // 0 is nobody's
}

}  // namespace tributary
