#include "kernels/cuda/device_memory.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/interface/validate.h"
#include "kernels/cuda/base/support.h"

namespace tributary::cuda {
void DeviceFree::operator()(std::byte* data) const noexcept {
  if (leave_memory_of_device()) return;
  const RelaxedCapture relaxed;
  (void)cudaFree(data);
}

DeviceBytes allocate_device(std::size_t bytes, const char* what) {
  const RelaxedCapture relaxed;
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    fail(ErrorCode::kPoolFull, "no device memory for {}: {} bytes asked for", what, bytes);
  }
  check(code, "allocating device memory");
  return DeviceBytes(static_cast<std::byte*>(data));
}

CudaCache::CudaCache(const CacheLayout& layout, const Backend* owner)
    : Cache(layout),
      owner_(owner),
      memory_(allocate_device(cache_bytes(layout), "the cache of latent rows")) {}

const CudaCache& own_cache(const Cache& cache, const Backend* backend) {
  const auto* own = dynamic_cast<const CudaCache*>(&cache);
  if (own == nullptr || own->owner() != backend) {
    fail(ErrorCode::kInvalidArgument, "cache was not made by backend {}", backend->name());
  }
  return *own;
}

}  // namespace tributary::cuda
