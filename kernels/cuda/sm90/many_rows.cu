// The many-rows kernel as functions of a grid.
#include <cuda.h>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/sm90/many_rows.h"
#include "kernels/cuda/sm90/many_rows_launch.h"

namespace tributary::cuda::sm90 {
namespace {

template <int kBlocks, bool kSelected, bool kCodes>
__global__ void __launch_bounds__(kThreads, 1)
    many_rows_grid([[maybe_unused]] const __grid_constant__ AttendLaunch launch,
                   [[maybe_unused]] const __grid_constant__ CUtensorMap map) {
  // Warpgroup products exist for sm_90a only; on other devices this is never launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  many_rows<kBlocks, kSelected, kCodes>(launch, &map);
#endif
}

}  // namespace

const void* many_rows_kernel(const Form& form) {
  if (form.codes) {
    return form.selected ? reinterpret_cast<const void*>(&many_rows_grid<1, true, true>)
                         : reinterpret_cast<const void*>(&many_rows_grid<1, false, true>);
  }
  if (form.selected) return reinterpret_cast<const void*>(&many_rows_grid<1, true, false>);
  return form.blocks == 1 ? reinterpret_cast<const void*>(&many_rows_grid<1, false, false>)
                          : reinterpret_cast<const void*>(&many_rows_grid<2, false, false>);
}

}  // namespace tributary::cuda::sm90
