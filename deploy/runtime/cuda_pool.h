// The workers of a pool of GPUs: built where CUDA is.
#pragma once

#include <string_view>

#include "deploy/runtime/device.h"

namespace tributary {

/// open_device (device.h) of `cuda` and `cuda/N`.
[[nodiscard]] WorkerDevice open_cuda(std::string_view name, int threads, Communicator& communicator,
                                     const BackendOptions& options);

}  // namespace tributary
