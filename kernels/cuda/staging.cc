#include "kernels/cuda/staging.h"

#include <bit>
#include <chrono>
#include <cstring>

namespace tributary::cuda {
namespace {

/// Time for the device to pass the calls of some layers: far above any layer, below a pool's
/// deadlines.
constexpr auto kPlanTimeout = std::chrono::seconds(30);

}  // namespace

Staging::Staging(cudaStream_t stream) : stream_(stream) {
  for (Slot& slot : slots_) slot.passed = make_event();
  grow(kFirstSlotBytes);
}

/// For a call that is larger than all before: waits once until the ring is free.
void Staging::grow(std::size_t bytes) {
  wait_for(stream_, Deadline::after(kPlanTimeout), "waiting for plan data to be used");
  slot_bytes_ = std::bit_ceil(bytes);
  host_ = allocate_pinned(kSlots * slot_bytes_);
  device_ = allocate_device(kSlots * slot_bytes_, "plan data");
  for (Slot& slot : slots_) {
    slot.used = 0;
    slot.pending = false;
  }
}

void Staging::begin(std::size_t bytes) {
  if (bytes > slot_bytes_) grow(2 * bytes);
  if (slots_[current_].used + bytes > slot_bytes_) {
    check(cudaEventRecord(slots_[current_].passed.get(), stream_), "recording an event");
    slots_[current_].pending = true;
    current_ = (current_ + 1) % kSlots;
    Slot& slot = slots_[current_];
    if (slot.pending) {
      wait_for(slot.passed.get(), Deadline::after(kPlanTimeout),
               "waiting for plan data to be used");
    }
    slot.pending = false;
    slot.used = 0;
  }
  first_ = next_ = current_ * slot_bytes_ + slots_[current_].used;
  slots_[current_].used += bytes;
}

const std::byte* Staging::put(std::span<const std::byte> part) {
  if (!part.empty()) std::memcpy(host_.get() + next_, part.data(), part.size());
  const std::byte* placed = device_.get() + next_;
  next_ += padded(part.size());
  return placed;
}

void Staging::send_to(std::byte* device) {
  if (next_ == first_) return;
  check(cudaMemcpyAsync(device, host_.get() + first_, next_ - first_, cudaMemcpyHostToDevice,
                        stream_),
        "sending plan data");
}

}  // namespace tributary::cuda
