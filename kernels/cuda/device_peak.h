// The peaks of a GPU, to compare measurements with, and the time that work takes on it.
#pragma once

#include <functional>

#include "core/interface/backend.h"

namespace tributary {

// For backends from make_cuda_backend, on the backend's thread. They throw kPoolFull if the device
// lacks memory (at most 4 GiB), kDeadlineExceeded, and kInternal with the library's message.

/// Bytes read plus bytes written a second, by copies within the device's memory. Median of several.
[[nodiscard]] double device_copy_bandwidth(Backend& backend);

/// FLOP/s of a large bf16 product with fp32 sums, by cuBLASLt's best algorithm. Median of several.
[[nodiscard]] double device_product_rate(Backend& backend);

/// Device time in seconds of the work that `enqueue` enqueues: the median of `runs`, after two for
/// warm-up. The host stays ahead of the device, to which it first gives a copy, so that the host's
/// time between launches is not included.
[[nodiscard]] double device_seconds(Backend& backend, int runs,
                                    const std::function<void()>& enqueue);

}  // namespace tributary
