// Memory that UCX writes payloads of rendezvous into, before they are copied to where they belong.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tributary::ucx {

/// Why the copy: a receive cannot be taken back. After the end of a connection UCX 1.13 neither
/// completes nor cancels it, and a sender that had only been slow goes on to write (seen over TCP,
/// with the heap's checker, after a forced close). So UCX gets memory that it may write into for as
/// long as its worker lives, and those who are told that a transfer failed get theirs back at once.
///
/// All of it together, in use or not, is bounded: payloads wait at their senders until there is
/// room. One that is larger than the bound goes when no other is on its way.
class BounceBuffers {
 public:
  using Clock = std::chrono::steady_clock;

  class Buffer {
   public:
    explicit Buffer(std::size_t capacity);
    [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

   private:
    friend class BounceBuffers;
    std::unique_ptr<std::byte[]> data_;
    std::size_t capacity_;
    bool suspect_ = false;  // of a failed receive: never freed before the worker
  };

  explicit BounceBuffers(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// At least `bytes` long, not initialised; no value when there is no room now.
  [[nodiscard]] std::optional<Buffer> acquire(std::size_t bytes, Clock::time_point now);
  /// UCX has completed the receive: it will not write any more.
  void release(Buffer buffer);
  /// It may still write. After kQuarantine the memory is used again: a write as late as that spoils
  /// a message of somebody else, whose checksum tells.
  void quarantine(Buffer buffer, Clock::time_point now);
  /// Longer than a sender that is only slow takes to notice the end of its connection.
  static constexpr std::chrono::seconds kQuarantine{15};

  /// Of all buffers there are.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void end_quarantine(Clock::time_point now);
  void shrink(std::size_t room);

  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::size_t in_use_ = 0;      // buffers
  std::size_t idle_bytes_ = 0;  // of free_, without those that must not be freed
  std::vector<Buffer> free_;    // the last used last
  std::deque<std::pair<Clock::time_point, Buffer>> quarantine_;  // by the time of its end
};

}  // namespace tributary::ucx
