// Internal to kernels/cuda: how plan data (tasks, tables, positions) reaches the device without the
// host waiting for it: a ring of page-locked memory and its mirror on the device.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <tuple>

#include "kernels/cuda/base/support.h"
#include "kernels/cuda/device_memory.h"

namespace tributary::cuda {

/// Used by one thread, for one stream. Memory that upload() returns is unchanged until the stream
/// has executed what was enqueued right after it: a slot is reused only after the stream has passed
/// the calls that were made while the slot was current.
class Staging {
 public:
  explicit Staging(cudaStream_t stream);

  /// Copies the spans, in one transfer on the stream, and returns where they lie on the device,
  /// each aligned to 16 bytes.
  template <typename... T>
  [[nodiscard]] std::tuple<const T*...> upload(std::span<const T>... parts) {
    begin((padded(parts.size_bytes()) + ...));
    const std::tuple<const T*...> placed{reinterpret_cast<const T*>(put(std::as_bytes(parts)))...};
    send_to(device_.get() + first_);
    return placed;
  }
  /// Copies `data` to `device`, the caller's own device memory, which later calls read.
  void send(std::span<const std::byte> data, std::byte* device) {
    begin(padded(data.size()));
    (void)put(data);
    send_to(device);
  }

 private:
  // A round of 128 sequences has about 100 KiB of plan data, and a layer has a dozen calls. A slot
  // holds a few layers, and the host waits only when it is several layers ahead of the device.
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kFirstSlotBytes = std::size_t{1} << 20;

  struct Slot {
    std::size_t used = 0;
    Event passed;
    bool pending = false;  // `passed` was recorded and not waited for
  };

  static constexpr std::size_t padded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }
  void begin(std::size_t bytes);
  [[nodiscard]] const std::byte* put(std::span<const std::byte> part);
  void send_to(std::byte* device);
  void grow(std::size_t bytes);

  cudaStream_t stream_;
  std::size_t slot_bytes_ = 0;
  Pinned host_;
  DeviceBytes device_;
  std::array<Slot, kSlots> slots_;
  std::size_t current_ = 0;
  std::size_t first_ = 0;  // of the bytes being put, in the ring
  std::size_t next_ = 0;
};

}  // namespace tributary::cuda
