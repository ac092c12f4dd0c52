#include "kernels/cuda/sm90/tensor_map.h"

#include <cuda.h>

#include <array>
#include <cstring>

#include "core/base/error.h"
#include "kernels/cuda/base/driver_function.h"
#include "kernels/cuda/base/support.h"
#include "kernels/cuda/sm90/layout.h"

namespace tributary::cuda {
namespace {

/// The version of the driver's interface that first had tensor maps.
constexpr unsigned kSinceDriver = 12000;

auto find_encoder() {
  void* function = nullptr;
  check(find_driver_function("cuTensorMapEncodeTiled", kSinceDriver, &function),
        "looking for cuTensorMapEncodeTiled");
  if (function == nullptr) {
    fail(ErrorCode::kUnsupported, "the CUDA driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CacheMap::CacheMap(const std::byte* cache, const CacheLayout& layout) {
  static_assert(sizeof(CUtensorMap) == kBytes);
  static_assert(alignof(CUtensorMap) <= kBytes);  // 64 in CUDA 12, 128 in CUDA 13
  if (layout.latent_dim() != sm90::kLatent || layout.row_format != RowFormat::kBF16) {
    fail(ErrorCode::kInternal, "tensor map of rows of {} {}, must be {} bf16", layout.latent_dim(),
         row_format_name(layout.row_format), sm90::kLatent);
  }
  const std::array<cuuint64_t, 2> sizes{
      sm90::kLatent,
      static_cast<cuuint64_t>(layout.layers) * static_cast<cuuint64_t>(layout.pages) * kPageTokens};
  const std::array<cuuint64_t, 1> strides{layout.row_bytes()};
  const std::array<cuuint32_t, 2> box{sm90::kColumns, sm90::kPage};
  const std::array<cuuint32_t, 2> steps{1, 1};
  CUtensorMap map;
  // A fetch brings 256 bytes into the L2 cache: all are used, because whole rows are read.
  const CUresult result =
      find_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<std::byte*>(cache),
                     sizes.data(), strides.data(), box.data(), steps.data(),
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail(ErrorCode::kInternal, "tensor map: the CUDA driver refuses {} rows of {} bytes (error {})",
         sizes[1], strides[0], static_cast<int>(result));
  }
  std::memcpy(bytes_, &map, sizeof(map));
}

}  // namespace tributary::cuda
