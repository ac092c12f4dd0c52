// Lets the thread that sends a message write it to the socket itself, while no earlier one waits:
// then the transport's thread need not wake for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "comm/transport/transport.h"

namespace tributary::tcp {

/// Of one connection. Messages keep the order in which they were offered: one goes directly only if
/// all earlier ones are written.
class DirectSender {
 public:
  /// `config` outlives it.
  explicit DirectSender(const TransportConfig& config) : config_(config) {}

  /// Messages may go to this socket from now on. The transport's thread calls it, and done().
  void open(int socket);
  /// For good: no thread writes any more when it returns. Any thread may call it.
  void close();
  /// So many messages that offer() has left to the transport's thread are written, or refused.
  void done(std::size_t messages);

  // Any thread may call these two.

  /// Hold it during offer(), and until the transport's thread has been left the rest: no other
  /// message may come between.
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  /// Writes as much of the message as the socket takes without waiting, which may be nothing, and
  /// returns how many of its bytes, its frame's header included. Unless that is all of it, the rest
  /// is the transport's thread's.
  [[nodiscard]] std::size_t offer(const OutgoingMessage& message);

 private:
  const TransportConfig& config_;
  std::mutex mutex_;  // guards what follows, and writing
  int socket_ = -1;
  bool closed_ = false;
  std::size_t left_ = 0;  // messages that are the transport's thread's
};

/// By peer, from the start of a connection to its end. Any thread may call.
class DirectSenders {
 public:
  /// `config` outlives it.
  explicit DirectSenders(const TransportConfig& config) : config_(config) {}

  std::shared_ptr<DirectSender> add(PeerId peer);
  void remove(PeerId peer);
  /// Null for an unknown peer.
  [[nodiscard]] std::shared_ptr<DirectSender> find(PeerId peer) const;

 private:
  const TransportConfig& config_;
  mutable std::mutex mutex_;
  std::unordered_map<PeerId, std::shared_ptr<DirectSender>> senders_;  // under the mutex
};

/// All bytes of a message on a connection.
[[nodiscard]] std::size_t frame_bytes(const OutgoingMessage& message) noexcept;

}  // namespace tributary::tcp
