// Memory that UCX writes rendezvous payloads into, before they are copied to their landing.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/raw_bytes.h"

namespace tributary::ucx {

/// Why the copy: a receive cannot be withdrawn. After the end of a connection UCX 1.13 neither
/// completes nor cancels it, and a sender that was only slow continues to write (seen over TCP with
/// a heap checker, after a forced close). So UCX gets memory that it may write into for as long as
/// its worker lives, and a caller whose transfer failed gets its own memory back at once.
///
/// The total, in use or idle, is bounded: payloads wait at their senders until there is room. A
/// payload larger than the bound is received when no other is in flight.
class BounceBuffers {
 public:
  using Clock = std::chrono::steady_clock;

  class Buffer {
   public:
    explicit Buffer(std::size_t capacity) : memory_(capacity) {}
    [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
    [[nodiscard]] std::size_t capacity() const noexcept { return memory_.capacity(); }

   private:
    friend class BounceBuffers;
    RawBytes memory_;
    bool suspect_ = false;  // used by a failed receive: not freed before the worker
  };

  explicit BounceBuffers(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// A buffer of at least `bytes` bytes, uninitialised. No value when there is no room now.
  [[nodiscard]] std::optional<Buffer> acquire(std::size_t bytes, Clock::time_point now);
  /// Call this when UCX has completed the receive and does not write any more.
  void release(Buffer buffer);
  /// Call this when UCX may still write. The memory is reused after kQuarantine; a later write
  /// would corrupt another message, whose checksum detects it.
  void quarantine(Buffer buffer, Clock::time_point now);
  /// Longer than a slow sender takes to notice the end of its connection.
  static constexpr std::chrono::seconds kQuarantine{15};

  /// Bytes of all buffers.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void end_quarantine(Clock::time_point now);
  void shrink(std::size_t room);

  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::size_t in_use_ = 0;      // buffers
  std::size_t idle_bytes_ = 0;  // of free_, except those that must not be freed
  std::vector<Buffer> free_;    // the most recently used last
  std::deque<std::pair<Clock::time_point, Buffer>> quarantine_;  // by the end of it
};

}  // namespace tributary::ucx
