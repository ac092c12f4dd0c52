#include "deploy/service/worker/home/access_check.h"

#include <algorithm>

#include "comm/transport/proof.h"
#include "comm/wire/mac.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

void AccessCheck::open(PeerId peer, const Proven& who, Time now) {
  const std::lock_guard lock(mutex_);
  connections_[peer] = {
      .session = who.session, .opened_as = who.id, .proven = {who.id}, .used = now};
}

wire::ProveReply AccessCheck::prove(PeerId peer, const wire::Prove& further, Time now) {
  wire::ProveReply reply;
  reply.items.resize(further.items.size());
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return reply;
  Connection& connection = found->second;
  connection.used = now;
  for (std::size_t i = 0; i < further.items.size(); ++i) {
    const wire::Prove::Item& item = further.items[i];
    const auto expected = proof::further_proof(wire::access_token(key_, item.sequence_id),
                                               connection.session, item.sequence_id);
    if (item.sequence_id == wire::kPoolItself || !wire::same_bytes(expected, item.proof)) continue;
    connection.proven.insert(item.sequence_id);
    reply.items[i].code = ErrorCode::kOk;
  }
  if (connection.proven.size() > kMostKept) {
    std::erase_if(connection.proven, [&](std::uint64_t id) { return !sequences_.home(id); });
  }
  return reply;
}

bool AccessCheck::allowed(PeerId peer, std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(peer);
  return found != connections_.end() && found->second.proven.contains(id);
}

std::uint64_t AccessCheck::opened_as(PeerId peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(peer);
  return found == connections_.end() ? 0 : found->second.opened_as;
}

void AccessCheck::close(PeerId peer) {
  const std::lock_guard lock(mutex_);
  connections_.erase(peer);
}

std::vector<AccessCheck::Idle> AccessCheck::idle(Time now) {
  const std::lock_guard lock(mutex_);
  std::vector<Idle> idle;
  for (auto& [peer, connection] : connections_) {
    const bool in_use = std::ranges::any_of(connection.proven, [&](std::uint64_t id) {
      return id == wire::kPoolItself || sequences_.home(id).has_value();
    });
    if (in_use) connection.used = now;
    if (!in_use) idle.push_back({peer, now - connection.used});
  }
  return idle;
}

}  // namespace tributary
