// Internal to kernels/cuda: errors of the CUDA runtime as Error, owners of its objects, and waits
// with a deadline.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>
#include <type_traits>

#include "core/base/deadline.h"

namespace tributary::cuda {

/// Throws unless `code` is success, with a message that names `what`: kPoolFull if memory is short,
/// kUnavailable without a driver or device, otherwise kInternal.
void check(cudaError_t code, std::string_view what);

/// Selects `device` for the calling thread. Every entry from outside begins with this call: the
/// runtime keeps the selection per thread, and calls may come from any thread.
void use_device(int device);

struct StreamDestroyer {
  void operator()(cudaStream_t stream) const noexcept { (void)cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDestroyer>;
/// A stream of the current device that does not wait for the default one.
[[nodiscard]] Stream make_stream();

struct EventDestroyer {
  void operator()(cudaEvent_t event) const noexcept { (void)cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDestroyer>;
/// An event without timing, for ordering only.
[[nodiscard]] Event make_event();
/// An event with timing.
[[nodiscard]] Event make_timing_event();

/// While it exists, calls of this thread leave captures alone: queries and allocations would
/// otherwise invalidate an engine's capture in global mode, which is PyTorch's default.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool exchanged_;
};

/// Whether a wait for work of the current device missed its deadline and nothing has shown since
/// that the work ended. The device may hang, and a wait without a deadline, which freeing memory
/// implies, would never return. Memory is then left to the end of the process; the first case is
/// reported on stderr.
[[nodiscard]] bool leave_memory_of_device() noexcept;

/// Page-locked host memory.
struct PinnedFree {
  void operator()(std::byte* data) const noexcept;
};
using Pinned = std::unique_ptr<std::byte[], PinnedFree>;
[[nodiscard]] Pinned allocate_pinned(std::size_t bytes);

/// Waits until everything before `event` is done; throws kDeadlineExceeded naming `what`.
void wait_for(cudaEvent_t event, Deadline deadline, std::string_view what);
/// The same for all work enqueued on `stream`.
void wait_for(cudaStream_t stream, Deadline deadline, std::string_view what);

}  // namespace tributary::cuda
