#include "comm/ucx/bounce_buffers.h"

#include <algorithm>
#include <bit>

namespace tributary::ucx {
namespace {

/// Capacities are powers of two, so that a buffer fits the next message of a similar size.
constexpr std::size_t kLeast = std::size_t{64} << 10;
/// Idle memory that is kept, enough for the messages in flight from two senders of rows. Fresh
/// memory costs a page fault every 4 KiB, a tenth of the time of its transfer over TCP.
constexpr std::size_t kMaxIdleBytes = std::size_t{8} << 20;

std::size_t capacity_for(std::size_t bytes) {
  return std::bit_ceil(std::max(bytes, kLeast));
}

}  // namespace

std::optional<BounceBuffers::Buffer> BounceBuffers::acquire(std::size_t bytes,
                                                            Clock::time_point now) {
  end_quarantine(now);
  const std::size_t capacity = capacity_for(bytes);
  // The most recently used buffer is still in the processor's cache.
  const auto fitting = std::find_if(free_.rbegin(), free_.rend(), [capacity](const Buffer& buffer) {
    return buffer.capacity() == capacity;
  });
  if (fitting != free_.rend()) {
    Buffer buffer = std::move(*fitting);
    free_.erase(std::next(fitting).base());
    if (!buffer.suspect_) idle_bytes_ -= capacity;
    ++in_use_;
    return buffer;
  }
  if (bytes_ + capacity > max_bytes_) shrink(capacity);
  if (bytes_ + capacity > max_bytes_ && in_use_ > 0) return std::nullopt;
  bytes_ += capacity;
  ++in_use_;
  return Buffer(capacity);
}

void BounceBuffers::release(Buffer buffer) {
  --in_use_;
  if (!buffer.suspect_) idle_bytes_ += buffer.capacity();
  free_.push_back(std::move(buffer));
  shrink(0);
}

void BounceBuffers::quarantine(Buffer buffer, Clock::time_point now) {
  --in_use_;
  buffer.suspect_ = true;
  quarantine_.emplace_back(now + kQuarantine, std::move(buffer));
}

void BounceBuffers::end_quarantine(Clock::time_point now) {
  for (; !quarantine_.empty() && quarantine_.front().first <= now; quarantine_.pop_front()) {
    free_.push_back(std::move(quarantine_.front().second));
  }
}

/// Frees idle buffers, the least recently used first, until few enough are idle and there is room
/// for `room` more bytes.
void BounceBuffers::shrink(std::size_t room) {
  for (auto buffer = free_.begin();
       buffer != free_.end() && (idle_bytes_ > kMaxIdleBytes || bytes_ + room > max_bytes_);) {
    if (buffer->suspect_) {
      ++buffer;
    } else {
      idle_bytes_ -= buffer->capacity();
      bytes_ -= buffer->capacity();
      buffer = free_.erase(buffer);
    }
  }
}

}  // namespace tributary::ucx
