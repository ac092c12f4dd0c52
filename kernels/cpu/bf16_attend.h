// Decode attention of bf16 queries over bf16 rows with BF16 dot products (AVX-512 BF16: Zen 4 and
// later, Cooper Lake, Sapphire Rapids and later). The rest of its table is that of AVX-512.
#pragma once

#include "kernels/cpu/kernel_table.h"

namespace tributary::cpu {

/// `base` (the table of AVX-512) with this attention, named AVX3_BF16. Null if this machine or this
/// build has no BF16 dot products.
[[nodiscard]] const KernelTable* bf16_kernel_table(const KernelTable& base);

/// The same with calls of more than kFewHeads heads on the fp32 kernels, named AVX3_BF16_FEW: for
/// processors whose dot products do no more per cycle than fp32 multiply-adds.
[[nodiscard]] const KernelTable* few_bf16_kernel_table(const KernelTable& base);

}  // namespace tributary::cpu
