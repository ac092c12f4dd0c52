// The launch of the many-rows kernel.
#include "kernels/cuda/sm90/many_rows_launch.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/base/support.h"
#include "kernels/cuda/sm90/layout.h"

namespace tributary::cuda {

void load_many_rows() {
  for (const sm90::Form& form : sm90::kForms) {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, sm90::many_rows_kernel(form)),
          "loading the many-rows kernel");
  }
}

void attend_many_rows(const AttendLaunch& launch, CUstream_st* stream) {
  const CacheLayout& layout = launch.layout;
  if (layout.kv_lora_rank != sm90::kRank || layout.latent_dim() != sm90::kLatent ||
      row_values(layout.row_format) != DType::kBF16 || launch.query_dtype != DType::kBF16) {
    fail(ErrorCode::kInternal, "attend, many rows: {} + {}, {} rows and {} queries",
         layout.kv_lora_rank, layout.qk_rope_head_dim, row_format_name(layout.row_format),
         dtype_name(launch.query_dtype));
  }
  const int blocks = launch.unit_rows / sm90::kRows;
  const sm90::Form form{.blocks = blocks,
                        .selected = launch.selected.most != 0,
                        .codes = holds_codes(layout.row_format)};
  const bool row_by_row = form.selected || form.codes;
  if (!row_by_row && launch.cache_map == nullptr) {
    fail(ErrorCode::kInternal, "attend, many rows: no tensor map");
  }
  if (launch.unit_rows != blocks * sm90::kRows || blocks < 1 || blocks > (row_by_row ? 1 : 2)) {
    fail(ErrorCode::kInternal,
         "attend, many rows: units of {} rows, must be {} or, of all rows in bf16, {}",
         launch.unit_rows, sm90::kRows, 2 * sm90::kRows);
  }

  const void* kernel = sm90::many_rows_kernel(form);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sm90::kSharedBytes)),
        "attend, many rows: shared memory");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.parts * blocks));
  config.blockDim = dim3(sm90::kThreads);
  config.dynamicSmemBytes = sm90::kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  // The runtime only reads them, and copies them into the launch.
  static constexpr CUtensorMap kNoMap{};
  const CUtensorMap* map = launch.cache_map == nullptr ? &kNoMap : launch.cache_map;
  std::array<void*, 2> arguments = {const_cast<AttendLaunch*>(&launch),
                                    const_cast<CUtensorMap*>(map)};
  check(cudaLaunchKernelExC(&config, kernel, arguments.data()), "attend, many rows");
}

}  // namespace tributary::cuda
