// The connections to a worker's data plane with their roles, and typed messages to them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/wire/codec.h"
#include "core/base/deadline.h"
#include "deploy/service/protocol/message_type.h"

namespace tributary {

/// Any thread may call any function, including the transport's.
class Peers {
 public:
  enum class Role {
    kNew,  // has not introduced itself
    kClient,
    kWorker,
    kLeader,
    kRefused,  // a client that reads why
    kClosing,  // closed on this side; messages still in flight are ignored
  };
  struct Peer {
    Role role = Role::kNew;
    int rank = 0;  // of a worker
    Time since{};
  };

  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Sets the transport of all messages to the result of `make`. Callers of find() wait while it
  /// runs.
  void open(const std::function<Transport&()>& make);
  /// Stops sending, because the transport ends.
  void stop() noexcept { stopping_ = true; }

  /// Connects to the leader of the pool; messages to it may be sent at once.
  [[nodiscard]] PeerId connect_leader(const std::string& address, const Introduction& pool,
                                      Time now);
  /// Returns a new peer if it was not known.
  Peer find(PeerId peer, Time now);
  /// Returns false if the connection has been closed on this side.
  [[nodiscard]] bool introduce(PeerId peer, Role role, Time now, int rank = 0);
  /// The peer's connection has ended. Returns who it was, or no value if nobody knows it.
  std::optional<Peer> forget(PeerId peer);
  /// Ends a connection on this side. Returns who it was, or no value if it was closed before.
  std::optional<Peer> close(PeerId peer);

  [[nodiscard]] std::size_t clients() const;
  /// The peers that had not introduced themselves, or were refused, before `limit` and are still
  /// there.
  [[nodiscard]] std::vector<PeerId> idle_since(Time limit) const;

  /// `payload` stays valid until `sent`, see OutgoingMessage.
  template <wire::Message Message>
  void send(PeerId peer, const Message& message,
            const std::vector<std::span<const std::byte>>& payload = {},
            const std::function<void(const Status&)>& sent = {}) {
    if (stopping_) return;
    transport_->send(peer, {.type = static_cast<std::uint16_t>(Message::kType),
                            .header = wire::encode(message),
                            .payload = payload,
                            .sent = sent});
  }

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<PeerId, Peer> peers_;

  Transport* transport_ = nullptr;  // set by open(), before anything is sent
  std::atomic<bool> stopping_ = false;
};

}  // namespace tributary
