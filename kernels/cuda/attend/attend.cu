// The kernels' entry points and their launches.
#include <cuda_runtime.h>

#include "kernels/cuda/attend/attend_launch.h"
#include "kernels/cuda/attend/dispatch.h"
#include "kernels/cuda/attend/few_rows.h"
#include "kernels/cuda/attend/generic.h"
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
  return with_row_tiles(launch.unit_rows, cudaErrorInvalidValue, [&](auto tiles) {
    return launch_few<decltype(tiles)::value>(launch, stages, stream);
  });
}

cudaError_t launch_generic(const AttendLaunch& launch, cudaStream_t stream) {
  return with_elements(*plain_elements(launch.layout.row_format), launch.query_dtype,
                       [&](auto row, auto query) {
                         return launch_plain<decltype(row), decltype(query)>(launch, stream);
                       });
}

cudaError_t load_attend_kernels() {
  // Asking for a kernel's attributes is the documented way to load it.
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

cudaError_t launch_merge(const MergeLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(launch.count),
                  static_cast<unsigned>((launch.heads + kMergeWarps - 1) / kMergeWarps));
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kMergeWarps * 32);
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = launch.dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, merge_kernel, launch);
}

}  // namespace tributary::cuda
