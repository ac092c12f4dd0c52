// Lets the thread that sends a message write it to the socket itself, while no earlier one waits:
// then the transport's thread need not wake for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "comm/transport/transport.h"

namespace tributary::tcp {

/// A message and how many bytes of its frame have left already.
struct Unfinished {
  OutgoingMessage message;
  std::size_t written = 0;
};

/// How DirectSender::send has left a message.
enum class Sent : std::uint8_t {
  kWhole,
  kWaiting,  // moved from: it waits for take()
  kClosed,   // untouched
};

/// Of one connection. Messages keep the order of send(): one goes directly only if all earlier ones
/// are written, and what is left waits here for the transport's thread. (Calls that are posted to
/// that thread are no queue: those that it posts itself may run after later ones of other threads.)
class DirectSender {
 public:
  /// `config` outlives it.
  explicit DirectSender(const TransportConfig& config) : config_(config) {}

  /// Messages may go to this socket from now on. The transport's thread calls it, take() and
  /// done().
  void open(int socket);
  /// For good: when it returns no thread writes any more, and no later message waits. Any thread
  /// may call it.
  void close();
  [[nodiscard]] bool closed();
  /// The messages that send() has left since the last call.
  [[nodiscard]] std::vector<Unfinished> take();
  /// So many messages that take() has given are written, or refused.
  void done(std::size_t messages);

  /// Writes as much of the message as the socket takes without waiting, which may be nothing. If
  /// that is all, calls its `sent`; else the transport's thread has to take() it. Any thread may
  /// call it.
  [[nodiscard]] Sent send(OutgoingMessage& message);

 private:
  /// Returns how many bytes of the message's frame have left.
  [[nodiscard]] std::size_t write(const OutgoingMessage& message) const;

  const TransportConfig& config_;
  std::mutex mutex_;  // guards what follows, and writing
  int socket_ = -1;
  bool closed_ = false;
  std::vector<Unfinished> waiting_;  // for take()
  std::size_t left_ = 0;             // messages that wait, or are taken and not done
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
