// The kernels' entry points and their launches.
#include <cuda_runtime.h>

#include "kernels/cuda/attend/few_rows.h"
#include "kernels/cuda/attend/generic.h"
#include "kernels/cuda/attend/launch.h"
#include "kernels/cuda/attend/merge.h"

namespace tributary::cuda {
namespace {

template <int kRowTiles>
__global__ void __launch_bounds__(FewRows<kRowTiles>::kThreads, 1)
    few_rows_kernel(const __grid_constant__ AttendLaunch launch, int stages) {
  FewRows<kRowTiles>(launch, stages).run();
}

template <typename RowElement, typename QueryElement>
__global__ void __launch_bounds__(Generic<RowElement, QueryElement>::kThreads)
    generic_kernel(const __grid_constant__ AttendLaunch launch) {
  Generic<RowElement, QueryElement>(launch).run();
}

__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_kernel(const __grid_constant__ MergeLaunch launch) {
  merge_block(launch);
}

template <int kRowTiles>
cudaError_t launch_few(const AttendLaunch& launch, int stages, cudaStream_t stream) {
  const std::size_t bytes = few_rows_bytes(kRowTiles, stages);
  const cudaError_t code =
      cudaFuncSetAttribute(few_rows_kernel<kRowTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes));
  if (code != cudaSuccess) return code;
  few_rows_kernel<kRowTiles>
      <<<static_cast<unsigned>(launch.parts), FewRows<kRowTiles>::kThreads, bytes, stream>>>(
          launch, stages);
  return cudaGetLastError();
}

template <typename RowElement, typename QueryElement>
cudaError_t launch_plain(const AttendLaunch& launch, cudaStream_t stream) {
  using Kernel = Generic<RowElement, QueryElement>;
  generic_kernel<RowElement, QueryElement>
      <<<static_cast<unsigned>(launch.parts), Kernel::kThreads, Kernel::kSharedBytes, stream>>>(
          launch);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_few_rows(const AttendLaunch& launch, int stages, cudaStream_t stream) {
  static_assert(kRowTileCounts == std::array{1, 2, 4});
  switch (launch.unit_rows) {
    case 16:
      return launch_few<1>(launch, stages, stream);
    case 32:
      return launch_few<2>(launch, stages, stream);
    case 64:
      return launch_few<4>(launch, stages, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t launch_generic(const AttendLaunch& launch, cudaStream_t stream) {
  const bool halves = launch.query_dtype == DType::kBF16;
  if (launch.layout.row_dtype == DType::kBF16) {
    return halves ? launch_plain<bf16, bf16>(launch, stream)
                  : launch_plain<bf16, float>(launch, stream);
  }
  return halves ? launch_plain<float, bf16>(launch, stream)
                : launch_plain<float, float>(launch, stream);
}

cudaError_t load_attend_kernels() {
  // To ask for a kernel's attributes is the documented way to have it loaded.
  cudaFuncAttributes attributes;
  for (const auto kernel : {few_rows_kernel<1>, few_rows_kernel<2>, few_rows_kernel<4>}) {
    const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
    if (code != cudaSuccess) return code;
  }
  for (const auto kernel : {generic_kernel<bf16, bf16>, generic_kernel<bf16, float>,
                            generic_kernel<float, bf16>, generic_kernel<float, float>}) {
    const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
    if (code != cudaSuccess) return code;
  }
  return cudaFuncGetAttributes(&attributes, merge_kernel);
}

cudaError_t launch_merge(const MergeLaunch& launch, int count, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(count),
                  static_cast<unsigned>((launch.heads + kMergeWarps - 1) / kMergeWarps));
  merge_kernel<<<grid, kMergeWarps * 32, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace tributary::cuda
