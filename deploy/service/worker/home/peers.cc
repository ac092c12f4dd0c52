#include "deploy/service/worker/home/peers.h"

#include <algorithm>

namespace tributary {

void Peers::open(const std::function<Transport&()>& make) {
  const std::lock_guard lock(mutex_);
  transport_ = &make();
}

PeerId Peers::connect_leader(const std::string& address, const Introduction& pool, Time now) {
  const std::lock_guard lock(mutex_);
  const PeerId leader = transport_->connect(address, pool);
  peers_[leader] = {.role = Role::kLeader, .since = now};
  return leader;
}

Peers::Peer Peers::find(PeerId peer, Time now) {
  const std::lock_guard lock(mutex_);
  const auto [found, added] = peers_.try_emplace(peer);
  if (added) found->second.since = now;
  return found->second;
}

bool Peers::introduce(PeerId peer, Role role, Time now, int rank) {
  const std::lock_guard lock(mutex_);
  Peer& known = peers_[peer];
  if (known.role == Role::kClosing) return false;
  known = {.role = role, .rank = rank, .since = now};
  return true;
}

std::optional<Peers::Peer> Peers::forget(PeerId peer) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return {};
  const Peer gone = found->second;
  peers_.erase(found);
  return gone;
}

std::optional<Peers::Peer> Peers::close(PeerId peer) {
  Peer ended;
  {
    const std::lock_guard lock(mutex_);
    const auto found = peers_.find(peer);
    if (found == peers_.end() || found->second.role == Role::kClosing) return {};
    ended = std::exchange(found->second, {.role = Role::kClosing});
  }
  if (stopping_) return ended;
  transport_->disconnect(peer);
  // Until the transport's thread has processed this, it may still deliver messages of the peer. The
  // answer to a later message shows that it has.
  transport_->send(peer, {.type = 0,
                          .header = {},
                          .payload = {},
                          .sent = [this, peer](const Status& /*status*/) { forget(peer); }});
  return ended;
}

std::size_t Peers::clients() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(
      peers_, [](const auto& known) { return known.second.role == Role::kClient; }));
}

std::vector<PeerId> Peers::idle_since(Time limit) const {
  std::vector<PeerId> idle;
  const std::lock_guard lock(mutex_);
  for (const auto& [peer, known] : peers_) {
    const bool silent = known.role == Role::kNew || known.role == Role::kRefused;
    if (silent && known.since < limit) idle.push_back(peer);
  }
  return idle;
}

}  // namespace tributary
