// The launch of sm90/many_rows.cu on emulated threads, as cudaLaunchKernelExC makes it, and the
// driver's function that describes the cache to it.
#include "kernels/cuda/sm90/many_rows_launch.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "kernels/cuda/sm90/many_rows.h"
#include "tests/kernels/cuda/runtime/launch.h"
#include "tests/kernels/cuda/sm90/emulation90.h"

using namespace tributary::test;          // NOLINT(google-build-using-namespace)
using namespace tributary::test::device;  // NOLINT(google-build-using-namespace)
namespace sm90 = tributary::cuda::sm90;

namespace {

/// The shared memory that a kernel may have without asking for more.
constexpr std::size_t kSharedUnasked = std::size_t{48} << 10;

/// Makes a map of bf16 rows in boxes of 64 x 64 with the 128-byte swizzle, the only kind that the
/// emulated copies support. The limits are those of the driver's interface.
CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* steps, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion /*promotion*/,
                CUtensorMapFloatOOBfill /*fill*/) {
  constexpr cuuint64_t kMostRows = cuuint64_t{1} << 32;
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && strides[0] % 16 == 0;
  if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 2 || !aligned || sizes[1] == 0 ||
      sizes[1] > kMostRows || strides[0] != sizes[0] * 2 || box[0] != 64 || box[1] != 64 ||
      steps[0] != 1 || steps[1] != 1 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const tributary::simt::TileMap tiles{static_cast<std::byte*>(data),
                                       static_cast<std::int64_t>(sizes[1]),
                                       static_cast<std::int64_t>(sizes[0])};
  static_assert(sizeof(tiles) <= sizeof(CUtensorMap));
  std::memcpy(static_cast<void*>(map), &tiles, sizeof(tiles));
  return CUDA_SUCCESS;
}

constexpr const char* kName = "attend, many rows";

/// Placeholders for the kernels, of which only the addresses are used: those of sm90::kForms.
bool known(const void* function) {
  return std::ranges::any_of(sm90::kForms,
                             [&](const sm90::Form& form) { return &form == function; });
}

void run_kernel(const sm90::Form& form, const tributary::cuda::AttendLaunch& launch,
                const CUtensorMap& map) {
  if (form.codes) {
    return form.selected ? sm90::many_rows<1, true, true>(launch, nullptr)
                         : sm90::many_rows<1, false, true>(launch, nullptr);
  }
  if (form.selected) return sm90::many_rows<1, true>(launch, nullptr);
  return form.blocks == 1 ? sm90::many_rows<1>(launch, &map) : sm90::many_rows<2>(launch, &map);
}

}  // namespace

const void* sm90::many_rows_kernel(const Form& form) {
  return std::ranges::find(sm90::kForms, form);
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function,
                                    unsigned long long /*flags*/,
                                    cudaDriverEntryPointQueryResult* found) {
#endif
  return call("cudaGetDriverEntryPointByVersion", [&](Device&, Lock&) {
    const bool known = std::string_view(symbol) == "cuTensorMapEncodeTiled";
    *function = known ? reinterpret_cast<void*>(&encode) : nullptr;
    if (found != nullptr) {
      *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return call("cudaFuncSetAttribute", [&](Device& device, Lock&) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorNotSupported;
    if (value < 0 || static_cast<std::size_t>(value) > most_shared_bytes(device)) {
      return cudaErrorInvalidValue;
    }
    device.shared_bytes[function] = static_cast<std::size_t>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return call("cudaFuncGetAttributes", [&](Device& device, Lock&) {
    if (!known(function) || device.capability != 90) return cudaErrorInvalidDeviceFunction;
    *attributes = {};
    device.loaded.insert(kName);
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  return call("cudaLaunchKernel", [&](Device& device, Lock&) {
    if (!known(function) || device.capability != 90) return cudaErrorNotSupported;
    const sm90::Form& form = *static_cast<const sm90::Form*>(function);
    unsigned cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const cudaLaunchAttribute& attribute = config->attrs[i];
      if (attribute.id != cudaLaunchAttributeClusterDimension) return cudaErrorNotSupported;
      cluster = attribute.val.clusterDim.x;
    }
    const tributary::simt::Launch grid{.blocks = config->gridDim.x,
                                       .threads = config->blockDim.x,
                                       .shared_bytes = config->dynamicSmemBytes,
                                       .cluster_blocks = cluster};
    const auto allowed = device.shared_bytes.find(function);
    const std::size_t shared =
        allowed == device.shared_bytes.end() ? kSharedUnasked : allowed->second;
    if (!launchable(device, grid) || cluster != static_cast<unsigned>(form.blocks) ||
        grid.blocks % cluster != 0 || grid.shared_bytes > shared) {
      return cudaErrorInvalidConfiguration;
    }
    // By value, as a kernel has its parameters.
    const auto launch = *static_cast<const tributary::cuda::AttendLaunch*>(arguments[0]);
    const auto map = *static_cast<const CUtensorMap*>(arguments[1]);
    count_launch(device, kName);
    return push(device, config->stream, {.what = kName, .run = [=] {
                                           check_memory(launch);
                                           tributary::simt::run(
                                               grid, [&] { run_kernel(form, launch, map); });
                                         }});
  });
}
