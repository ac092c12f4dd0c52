#include "kernels/cpu/amx_attend.h"

#if defined(__x86_64__)

#include "kernels/cpu/amx_gemm.h"
#include "kernels/cpu/amx_gemm_f8.h"
#include "kernels/cpu/amx_leaf.h"
#include "kernels/cpu/tiles.h"

namespace tributary::cpu {

const KernelTable* amx_kernel_table(const KernelTable& base) {
  if (!tiles_usable()) return nullptr;
  static const PairKernel kernel = amx::pair_kernel<HardwareTiles>();
  static const KernelTable table = [&base] {
    KernelTable copy = base;
    copy.name = kAmxTableName;
    copy.pairs = &kernel;
    copy.gemm_bf16 = amx::bf16_kernel<HardwareTiles>();
    copy.gemm_f8 = amx::f8_kernel<HardwareTiles>();
    return copy;
  }();
  return &table;
}

}  // namespace tributary::cpu

#else

namespace tributary::cpu {

const KernelTable* amx_kernel_table(const KernelTable& /*base*/) {
  return nullptr;
}

}  // namespace tributary::cpu

#endif
