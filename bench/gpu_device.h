// What a GPU can do at most, and how long things take on it: the scale of the GPU benchmarks.
#pragma once

#include <cstddef>
#include <functional>

#include "core/interface/backend.h"

namespace tributary::bench {

/// Bytes read plus bytes written a second, by copies within the device's memory. Median of several.
[[nodiscard]] double copy_bandwidth(Backend& backend);

/// FLOP/s of a large bf16 product with fp32 sums, by cuBLASLt's best algorithm. Median of several.
[[nodiscard]] double product_rate(Backend& backend);

/// Seconds that the device takes for what `enqueue` enqueues: the median of `runs`, after two that
/// do not count. The host is ahead of the device all the while (it first gives the device a copy to
/// do), so that what the host does between launches is not in it.
[[nodiscard]] double device_seconds(Backend& backend, int runs,
                                    const std::function<void()>& enqueue);

}  // namespace tributary::bench
