// A worker's side of the messages between the workers of a pool and their leader. One form is
// beside the leader, in its process; the other talks to it over a connection.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <variant>

#include "comm/transport/transport.h"
#include "core/base/error.h"
#include "core/pool/order_channel.h"
#include "deploy/service/protocol/worker_messages.h"
#include "deploy/service/worker/home/peers.h"

namespace tributary {

/// A message to the leader.
using ToLeader = std::variant<wire::Items, wire::ControlRelay, wire::Progress, wire::Beat,
                              wire::OrderWanted, wire::Leaving, wire::WaitedFor>;

/// It is also the channel of the pool's orders.
class LeaderPort : public OrderChannel {
 public:
  /// From any thread. If the leader is too far behind to take the message, it comes back refused.
  virtual void post(ToLeader message) = 0;

  /// The worker's thread does the work of this transport, whose messages it waits for; null: it
  /// ends.
  virtual void work_with(Transport* /*transport*/) {}

  // Messages from others of the pool, on the transport's thread. These functions throw the error
  // that ends the connection.

  /// A new connection that has proven the pool's own token introduces itself as one of its workers.
  virtual void join(PeerId peer, const wire::Join& join, Time now) = 0;
  /// Takes a message from a worker or the leader.
  [[nodiscard]] virtual std::optional<Landing> receive(const Peers::Peer& from,
                                                       wire::MessageType type,
                                                       std::span<const std::byte> header,
                                                       std::size_t payload_bytes) = 0;
  /// A connection to a worker or the leader has ended.
  virtual void lost(const Peers::Peer& peer, const Status& reason) = 0;
};

}  // namespace tributary
