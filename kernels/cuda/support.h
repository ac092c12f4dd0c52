// Internal to kernels/cuda: errors of the CUDA runtime as Error, owners of its objects, and waits
// with a deadline.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>
#include <type_traits>

#include "core/base/deadline.h"

namespace tributary::cuda {

/// Throws unless `code` is success, naming what was asked for: kPoolFull where memory is short,
/// kUnavailable where there is no driver or device, else kInternal.
void check(cudaError_t code, std::string_view what);

/// Makes `device` the calling thread's. Every entry from outside begins with it: the runtime keeps
/// the choice per thread, and calls may come from any thread.
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
/// An event that takes no time, only orders.
[[nodiscard]] Event make_event();
/// One that tells when it was passed.
[[nodiscard]] Event make_timing_event();

/// Page-locked host memory.
struct PinnedFree {
  void operator()(std::byte* data) const noexcept { (void)cudaFreeHost(data); }
};
using Pinned = std::unique_ptr<std::byte[], PinnedFree>;
[[nodiscard]] Pinned allocate_pinned(std::size_t bytes);

/// Waits until everything before `event` is done; throws kDeadlineExceeded naming `what`.
void wait_for(cudaEvent_t event, Deadline deadline, std::string_view what);
/// The same for all that was enqueued on `stream`.
void wait_for(cudaStream_t stream, Deadline deadline, std::string_view what);

}  // namespace tributary::cuda
