// Decode attention of bf16 queries over bf16 rows on the tiles of AMX (Sapphire Rapids and later).
// The rest of its table is that of AVX-512.
#pragma once

#include <string_view>

#include "kernels/cpu/kernel_table.h"

namespace tributary::cpu {

inline constexpr std::string_view kAmxTableName = "AMX_BF16";

/// Returns `base` (the table of AVX-512) with this attention, or null if tiles are not usable
/// (tiles.h).
[[nodiscard]] const KernelTable* amx_kernel_table(const KernelTable& base);

}  // namespace tributary::cpu
