// Memory that UCX writes payloads of rendezvous into, before they are copied to where they belong.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace tributary::ucx {

/// Why the copy: a receive cannot be taken back. After the end of a connection UCX 1.13 neither
/// completes nor cancels it, and a sender that had only been slow goes on to write (seen over TCP,
/// with the heap's checker, after a forced close). So UCX gets memory that it may write into for as
/// long as its worker lives, and those who are told that a transfer failed get theirs back at once.
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

  /// At least `bytes` long, not initialised.
  [[nodiscard]] Buffer acquire(std::size_t bytes);
  /// UCX has completed the receive: it will not write any more.
  void release(Buffer buffer);
  /// It may still write. After kQuarantine the memory is used again: a write as late as that spoils
  /// a message of somebody else, whose checksum tells.
  void quarantine(Buffer buffer, Clock::time_point now);

 private:
  void keep(Buffer buffer);

  std::vector<Buffer> free_;
  std::size_t free_bytes_ = 0;  // of those that may be given back to the system
  std::deque<std::pair<Clock::time_point, Buffer>> quarantine_;  // by the time of its end
};

}  // namespace tributary::ucx
