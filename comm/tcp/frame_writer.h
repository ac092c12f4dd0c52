// Turns queued messages into the bytes of a connection, in the order of send(). It knows nothing of
// sockets: its owner asks what to write next, and reports how much was written.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "comm/http/stream.h"
#include "comm/transport/transport.h"
#include "core/base/deadline.h"

namespace tributary::tcp {

/// The header of a message's frame, and the message's.
[[nodiscard]] std::vector<std::byte> encode_frame(const OutgoingMessage& message);

/// Payloads are not copied. The owner bounds the queue (check_room).
class FrameWriter {
 public:
  /// The first `written` bytes have left already, which is possible only if nothing else waits.
  void push(OutgoingMessage message, Time now, std::size_t written = 0);
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }
  [[nodiscard]] std::size_t messages() const noexcept { return waiting_.size(); }
  /// The cost of the queued messages, as max_outgoing_bytes counts it.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// When the first message was queued. Call only if not empty().
  [[nodiscard]] Time oldest() const { return waiting_.front().since; }

  /// The next pieces to write, as many as one write takes. Call only if not empty().
  [[nodiscard]] WriteBuffers next() const;
  /// The first `bytes` of next() have been written: calls `sent` of each complete message.
  void written(std::size_t bytes);
  /// Calls `sent` of all queued messages with `reason`.
  void stop(const Status& reason);

 private:
  struct Waiting {
    std::vector<std::byte> head;  // the frame's header and the message's
    std::vector<std::span<const std::byte>> payload;
    std::function<void(const Status&)> sent;
    std::size_t cost = 0;
    Time since;

    [[nodiscard]] std::span<const std::byte> piece(std::size_t i) const {
      return i == 0 ? std::span<const std::byte>(head) : payload[i - 1];
    }
    [[nodiscard]] std::size_t pieces() const noexcept { return 1 + payload.size(); }
  };
  /// Removes the first message and calls its `sent`.
  void pop(const Status& status);

  std::deque<Waiting> waiting_;
  std::size_t bytes_ = 0;
  std::size_t piece_ = 0;  // of the first message: the next one to write
  std::size_t piece_written_ = 0;
};

}  // namespace tributary::tcp
