#include "deploy/runtime/device.h"

#include "deploy/runtime/backends.h"
#ifdef TRIBUTARY_HAS_CUDA
#include "deploy/runtime/cuda_pool.h"
#endif

namespace tributary {

WorkerDevice open_device(std::string_view name, int threads,
                         [[maybe_unused]] Communicator& communicator) {
#ifdef TRIBUTARY_HAS_CUDA
  if (name == "cuda" || name.starts_with("cuda/")) return open_cuda(name, threads, communicator);
#endif
  WorkerDevice device;
  device.backend = make_backend(name, threads);
  return device;
}

}  // namespace tributary
