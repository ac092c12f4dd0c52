#include "comm/ucx/bounce_buffers.h"

#include <algorithm>

namespace tributary::ucx {
namespace {

/// Longer than a paused sender stays unnoticed anywhere here.
constexpr std::chrono::seconds kQuarantine{60};
/// Kept for the next messages: fresh memory costs a page fault every 4 KiB, a tenth of the time of
/// its transfer over TCP.
constexpr std::size_t kMaxFreeBytes = std::size_t{64} << 20;
/// A buffer serves messages down to a fraction of its size; smaller ones get their own.
constexpr std::size_t kMaxWaste = 4;

}  // namespace

BounceBuffers::Buffer::Buffer(std::size_t capacity)
    : data_(std::make_unique_for_overwrite<std::byte[]>(capacity)), capacity_(capacity) {}

BounceBuffers::Buffer BounceBuffers::acquire(std::size_t bytes) {
  const auto now = Clock::now();
  for (; !quarantine_.empty() && quarantine_.front().first <= now; quarantine_.pop_front()) {
    keep(std::move(quarantine_.front().second));
  }
  const auto found = std::ranges::find_if(free_, [bytes](const Buffer& buffer) {
    return buffer.capacity() >= bytes && buffer.capacity() / kMaxWaste <= bytes;
  });
  if (found == free_.end()) return Buffer(bytes);
  Buffer buffer = std::move(*found);
  free_.erase(found);
  if (!buffer.suspect_) free_bytes_ -= buffer.capacity();
  return buffer;
}

void BounceBuffers::release(Buffer buffer) {
  keep(std::move(buffer));
}

void BounceBuffers::quarantine(Buffer buffer, Clock::time_point now) {
  buffer.suspect_ = true;
  quarantine_.emplace_back(now + kQuarantine, std::move(buffer));
}

void BounceBuffers::keep(Buffer buffer) {
  if (!buffer.suspect_) {
    if (free_bytes_ + buffer.capacity() > kMaxFreeBytes) return;
    free_bytes_ += buffer.capacity();
  }
  free_.push_back(std::move(buffer));
}

}  // namespace tributary::ucx
