// What a GPU does at most, and how long things take on it: the scale of what is measured on it.
#pragma once

#include <functional>

#include "core/interface/backend.h"

namespace tributary {

// Of backends that make_cuda_backend made, from the backend's thread. They throw kPoolFull where
// the device's memory is short (4 GiB at most), kDeadlineExceeded, kInternal with the library's
// words.

/// Bytes read plus bytes written a second, by copies within the device's memory. Median of several.
[[nodiscard]] double device_copy_bandwidth(Backend& backend);

/// FLOP/s of a large bf16 product with fp32 sums, by cuBLASLt's best algorithm. Median of several.
[[nodiscard]] double device_product_rate(Backend& backend);

/// Seconds that the device takes for what `enqueue` enqueues: the median of `runs`, after two that
/// do not count. The host is ahead of the device all the while (it first gives the device a copy to
/// do), so that what the host does between launches is not in it.
[[nodiscard]] double device_seconds(Backend& backend, int runs,
                                    const std::function<void()>& enqueue);

}  // namespace tributary
