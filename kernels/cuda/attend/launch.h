// Internal to this folder: launches, apart from what decides and reports. nvcc cannot compile fmt
// in C++20, so errors get their words elsewhere.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/merge.h"

namespace tributary::cuda {

/// Of 16, 32 or 64 rows; cudaErrorInvalidValue for others.
[[nodiscard]] cudaError_t launch_few_rows(const AttendLaunch& launch, int stages,
                                          cudaStream_t stream);
[[nodiscard]] cudaError_t launch_generic(const AttendLaunch& launch, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_merge(const MergeLaunch& launch, cudaStream_t stream);

/// Onto the current device, all of them: it would load each at its first launch, and may wait for
/// other work then.
[[nodiscard]] cudaError_t load_attend_kernels();

}  // namespace tributary::cuda
