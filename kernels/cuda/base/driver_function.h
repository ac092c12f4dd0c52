// Finds a function of the CUDA driver by name, without linking the driver: programs start where
// there is none.
#pragma once

#include <cuda_runtime_api.h>

namespace tributary::cuda {

/// Looks for `symbol` in the version of the driver's interface given by `since` (12000: CUDA 12.0).
/// `*function` is null if the driver does not have it; other codes than success are those of the
/// runtime.
inline cudaError_t find_driver_function(const char* symbol, unsigned since, void** function) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(symbol, function, since, cudaEnableDefault, &found);
#else
  static_cast<void>(since);  // the runtime asks for the version that it was built with
  const cudaError_t code = cudaGetDriverEntryPoint(symbol, function, cudaEnableDefault, &found);
#endif
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) *function = nullptr;
  return code;
}

}  // namespace tributary::cuda
