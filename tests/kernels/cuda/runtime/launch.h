// Internal to this folder: a kernel's launch, whose threads are emulated (emulation/simt.h).
#pragma once

#include "kernels/cuda/attend/attend.h"
#include "tests/kernels/cuda/emulation/simt.h"
#include "tests/kernels/cuda/runtime/state.h"

namespace tributary::test::device {

/// Whether a launch is within the device's limits.
[[nodiscard]] bool launchable(const Device& device, const simt::Launch& grid);

/// Loads the kernel of this name, as cudaFuncGetAttributes does.
[[nodiscard]] cudaError_t load_kernel(const char* name);

/// Counts a launch that is not refused, and loads its kernel unless that has been done.
void count_launch(Device& device, const char* name);

/// Enqueues `kernel`, which holds its parameters by value. Just before the kernel runs, `memory`
/// checks the memory that it will use (require_device_memory).
template <typename Memory, typename Kernel>
[[nodiscard]] cudaError_t launch(const char* what, const simt::Launch& grid, cudaStream_t stream,
                                 Memory memory, Kernel kernel) {
  return call("cudaLaunchKernel", [&](Device& device, Lock&) {
    if (!launchable(device, grid)) return cudaErrorInvalidConfiguration;
    count_launch(device, what);
    return push(device, stream, {.what = what, .run = [grid, memory, kernel] {
                                   memory();
                                   simt::run(grid, kernel);
                                 }});
  });
}

/// Checks the memory that an attention kernel reads and writes according to its plan.
void check_memory(const cuda::AttendLaunch& launch);

}  // namespace tributary::test::device
