#include "core/round/scratch_buffer.h"

#include <algorithm>
#include <utility>

namespace tributary {
namespace {

constexpr std::size_t kLeast = 4096;  // never empty: data() is always valid

}  // namespace

ScratchBuffer::ScratchBuffer(Backend& backend)
    : backend_(backend), buffer_(backend.allocate(kLeast)) {}

void ScratchBuffer::replace(std::size_t bytes) {
  buffer_.reset();  // first: the two need not exist side by side
  buffer_ = backend_.allocate(bytes);
}

void ScratchBuffer::reserve(std::size_t bytes) {
  needed_ = std::max(needed_, bytes);
  // Rounds grow by a row at a time. Reserving half more than needed lets few of them allocate.
  if (!buffer_ || this->bytes() < bytes) {
    replace(std::max({bytes, buffer_ ? this->bytes() + this->bytes() / 2 : 0, kLeast}));
  }
}

void ScratchBuffer::trim(Time now) {
  if (now < window_end_) return;
  const Time last_end = std::exchange(window_end_, now + kWindow);
  std::size_t largest = std::exchange(needed_, 0);
  if (last_end == Time{}) return;
  if (now >= last_end + kWindow) largest = 0;  // there was no round in all this time
  if (bytes() > std::max(kSmall, 2 * largest)) replace(std::max(largest, kLeast));
}

}  // namespace tributary
