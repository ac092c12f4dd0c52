#include "kernels/cuda/cuda_devices.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "kernels/cuda/base/support.h"
#include "kernels/cuda/cublaslt.h"

namespace tributary {
namespace {

/// The least capability that the kernels are built for: they need mma.sync of bf16 and cp.async.
constexpr int kLeastCapability = 80;

CudaDevice describe(int ordinal, const cudaDeviceProp& properties) {
  CudaDevice device{.ordinal = ordinal,
                    .name = properties.name,
                    .compute_capability = 10 * properties.major + properties.minor,
                    .memory_bytes = properties.totalGlobalMem,
                    .uuid = {}};
  std::copy_n(reinterpret_cast<const std::byte*>(properties.uuid.bytes), device.uuid.size(),
              device.uuid.begin());
  return device;
}

std::string problem_of(const CudaStatus& status, cudaError_t error) {
  if (status.driver_version == 0) return "no CUDA driver";
  if (error != cudaSuccess) {
    return fmt::format("{} (driver for CUDA {}, built with {})", cudaGetErrorString(error),
                       cuda_version_text(status.driver_version),
                       cuda_version_text(status.runtime_version));
  }
  if (status.devices.empty()) return "no CUDA device";
  const auto usable = [](const CudaDevice& device) {
    return device.compute_capability >= kLeastCapability;
  };
  if (std::ranges::none_of(status.devices, usable)) {
    const CudaDevice& first = status.devices.front();
    return fmt::format("{} has compute capability {}.{}, expected at least {}.{}", first.name,
                       first.compute_capability / 10, first.compute_capability % 10,
                       kLeastCapability / 10, kLeastCapability % 10);
  }
  return {};
}

}  // namespace

CudaStatus cuda_status() {
  CudaStatus status;
  (void)cudaDriverGetVersion(&status.driver_version);
  (void)cudaRuntimeGetVersion(&status.runtime_version);
  int count = 0;  // untouched where there is no driver
  cudaError_t error = cudaGetDeviceCount(&count);
  for (int ordinal = 0; error == cudaSuccess && ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    error = cudaGetDeviceProperties(&properties, ordinal);
    if (error == cudaSuccess) status.devices.push_back(describe(ordinal, properties));
  }
  (void)cudaGetLastError();
  status.problem = problem_of(status, error);
  status.products_problem = cuda::cublaslt_problem();
  return status;
}

CudaDevice open_cuda_device(int ordinal) {
  const CudaStatus status = cuda_status();
  if (!status.problem.empty()) {
    fail(ErrorCode::kUnsupported, "backend cuda cannot run here: {}", status.problem);
  }
  const auto found = std::ranges::find(status.devices, ordinal, &CudaDevice::ordinal);
  if (found == status.devices.end()) {
    fail(ErrorCode::kInvalidArgument, "CUDA device is {}, this process may use {}", ordinal,
         status.devices.size());
  }
  cuda::use_device(ordinal);
  return *found;
}

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace tributary
