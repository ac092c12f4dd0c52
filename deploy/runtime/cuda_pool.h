// The workers of a pool of GPUs; built only with CUDA.
#pragma once

#include <string_view>

#include "deploy/runtime/device.h"

namespace tributary {

/// The form of open_device (device.h) for `cuda` and `cuda/N`.
[[nodiscard]] WorkerDevice open_cuda(std::string_view name, int threads, Communicator& communicator,
                                     const BackendOptions& options);

}  // namespace tributary
