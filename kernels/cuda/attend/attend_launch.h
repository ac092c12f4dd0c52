// Internal to this folder: the launches, without decisions and error messages. nvcc cannot compile
// fmt in C++20, so error messages are made elsewhere.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/merge.h"

namespace tributary::cuda {

/// Launches the kernel for 16, 32 or 64 rows; cudaErrorInvalidValue for others.
[[nodiscard]] cudaError_t launch_few_rows(const AttendLaunch& launch, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_generic(const AttendLaunch& launch, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_merge(const MergeLaunch& launch, cudaStream_t stream);

/// Loads all kernels on the current device. Otherwise each would be loaded at its first launch,
/// which may wait for other work.
[[nodiscard]] cudaError_t load_attend_kernels();

}  // namespace tributary::cuda
