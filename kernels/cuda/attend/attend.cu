// The kernels' entry points and their launches.
#include <cuda_runtime.h>

#include "kernels/cuda/attend/attend_launch.h"
#include "kernels/cuda/attend/dispatch.h"
#include "kernels/cuda/attend/few_rows.h"
#include "kernels/cuda/attend/generic.h"
#include "kernels/cuda/attend/merge.h"

namespace tributary::cuda {
namespace {

template <int kRowTiles, bool kSelected, bool kCodes, int kBlocks = 1>
__global__ void __launch_bounds__(FewRows<kRowTiles>::kThreads, kBlocks)
    few_rows_kernel(const __grid_constant__ AttendLaunch launch) {
  FewRows<kRowTiles, kSelected, kCodes>(launch).run();
}

template <typename RowElement, typename QueryElement, bool kSelected>
__global__ void __launch_bounds__(Generic<RowElement, QueryElement>::kThreads)
    generic_kernel(const __grid_constant__ AttendLaunch launch) {
  Generic<RowElement, QueryElement, kSelected>(launch).run();
}

__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_kernel(const __grid_constant__ MergeLaunch launch) {
  merge_block(launch);
}

template <int kRowTiles, bool kSelected, bool kCodes>
auto few_rows_kernel_of(int blocks) {
  if constexpr (kRowTiles == 1) {
    if (blocks == 2) return few_rows_kernel<1, kSelected, kCodes, 2>;
  }
  return few_rows_kernel<kRowTiles, kSelected, kCodes>;
}

template <int kRowTiles, bool kSelected, bool kCodes>
cudaError_t launch_few(const AttendLaunch& launch, cudaStream_t stream) {
  const auto kernel = few_rows_kernel_of<kRowTiles, kSelected, kCodes>(launch.blocks);
  const std::size_t bytes = few_rows_bytes(kRowTiles, launch.stages);
  const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(bytes));
  if (code != cudaSuccess) return code;
  kernel<<<static_cast<unsigned>(launch.parts), FewRows<kRowTiles>::kThreads, bytes, stream>>>(
      launch);
  return cudaGetLastError();
}

template <typename RowElement, typename QueryElement>
cudaError_t launch_plain(const AttendLaunch& launch, cudaStream_t stream) {
  using Kernel = Generic<RowElement, QueryElement>;
  const auto kernel = launch.selected.most == 0 ? generic_kernel<RowElement, QueryElement, false>
                                                : generic_kernel<RowElement, QueryElement, true>;
  kernel<<<static_cast<unsigned>(launch.parts), Kernel::kThreads, Kernel::kSharedBytes, stream>>>(
      launch);
  return cudaGetLastError();
}

/// Loads a kernel: asking for its attributes is the documented way.
cudaError_t load(const void* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

template <bool kSelected, bool kCodes>
cudaError_t load_few_rows() {
  for (const auto kernel :
       {few_rows_kernel<1, kSelected, kCodes>, few_rows_kernel<1, kSelected, kCodes, 2>,
        few_rows_kernel<2, kSelected, kCodes>, few_rows_kernel<4, kSelected, kCodes>}) {
    const cudaError_t code = load(reinterpret_cast<const void*>(kernel));
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

template <typename RowElement, typename QueryElement>
cudaError_t load_plain() {
  for (const auto kernel : {generic_kernel<RowElement, QueryElement, false>,
                            generic_kernel<RowElement, QueryElement, true>}) {
    const cudaError_t code = load(reinterpret_cast<const void*>(kernel));
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_few_rows(const AttendLaunch& launch, cudaStream_t stream) {
  return with_few_rows(launch, cudaErrorInvalidValue, [&](auto tiles, auto selected, auto codes) {
    return launch_few<tiles(), selected(), codes()>(launch, stream);
  });
}

cudaError_t launch_generic(const AttendLaunch& launch, cudaStream_t stream) {
  return with_elements(launch.layout.row_format, launch.query_dtype, [&](auto row, auto query) {
    return launch_plain<decltype(row), decltype(query)>(launch, stream);
  });
}

cudaError_t load_attend_kernels() {
  for (const auto load_some :
       {load_few_rows<false, false>, load_few_rows<true, false>, load_few_rows<false, true>,
        load_few_rows<true, true>, load_plain<bf16, bf16>, load_plain<bf16, float>,
        load_plain<float, bf16>, load_plain<float, float>, load_plain<Codes, bf16>,
        load_plain<Codes, float>}) {
    const cudaError_t code = load_some();
    if (code != cudaSuccess) return code;
  }
  return load(reinterpret_cast<const void*>(merge_kernel));
}

cudaError_t launch_merge(const MergeLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(launch.count),
                  static_cast<unsigned>((launch.heads + kMergeWarps - 1) / kMergeWarps));
  merge_kernel<<<grid, kMergeWarps * 32, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace tributary::cuda
