// Internal to this folder: a kernel's launch, whose threads are emulated (emulation/simt.h).
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "kernels/cuda/attend/attend.h"
#include "tests/kernels/cuda/emulation/simt.h"
#include "tests/kernels/cuda/runtime/state.h"

namespace tributary::test::device {

/// The device's limits of a launch.
[[nodiscard]] bool launchable(const Device& device, const simt::Launch& grid);

/// What cudaFuncGetAttributes does besides: loads the kernel of this name.
[[nodiscard]] cudaError_t load_kernel(const char* name);

/// A launch, where it is not refused, counts, and loads the kernel where nobody did.
void count_launch(Device& device, const char* name);

/// Enqueues `kernel`, which has its parameters by value. `memory`, when the kernel's turn has come,
/// checks what it is about to use (require_device_memory).
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

/// What an attention kernel reads and writes, by its plan.
void check_memory(const cuda::AttendLaunch& launch);

}  // namespace tributary::test::device
