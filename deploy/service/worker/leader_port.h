// A worker's side of what the workers of a pool and their leader say to each other. One form stands
// beside the leader, in its process; the other speaks to it over a connection.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "comm/transport/transport.h"
#include "core/base/error.h"
#include "core/pool/order_channel.h"
#include "deploy/service/protocol/worker_messages.h"
#include "deploy/service/worker/peers.h"

namespace tributary {

/// Also the channel of the pool's orders.
class LeaderPort : public OrderChannel {
 public:
  // To the leader, from any thread. What it cannot take, being too far behind, comes back refused.

  virtual void post(wire::Items items) = 0;
  virtual void post(wire::ControlRelay relay) = 0;
  virtual void post(const wire::Progress& progress) = 0;
  virtual void post(const wire::Beat& beat) = 0;

  // From others of the pool, on the transport's thread. They throw what ends the connection.

  /// A new connection says that it is a worker of this pool.
  virtual void join(PeerId peer, const wire::Join& join) = 0;
  /// Takes a message from a worker or the leader.
  [[nodiscard]] virtual std::optional<Landing> receive(const Peers::Peer& from,
                                                       wire::MessageType type,
                                                       std::span<const std::byte> header,
                                                       std::size_t payload_bytes) = 0;
  /// A connection to one of them has ended.
  virtual void lost(const Peers::Peer& peer, const Status& reason) = 0;
};

}  // namespace tributary
