#include "deploy/runtime/device.h"

#ifdef TRIBUTARY_HAS_CUDA
#include "deploy/runtime/cuda_pool.h"
#endif

namespace tributary {

WorkerDevice open_device(std::string_view name, int threads,
                         [[maybe_unused]] Communicator& communicator,
                         const BackendOptions& options) {
#ifdef TRIBUTARY_HAS_CUDA
  if (name == "cuda" || name.starts_with("cuda/"))
    return open_cuda(name, threads, communicator, options);
#endif
  WorkerDevice device;
  device.backend = make_backend(name, threads, options);
  return device;
}

}  // namespace tributary
