// The table of AMX_BF16 on emulated tiles (emulated_tiles.h), for tests that run it as they run
// any other.
#pragma once

#include "kernels/cpu/kernel_table.h"

namespace tributary::cpu {

/// Named AMX_BF16, as the table on the processor's tiles: its bits are the same. Null where there
/// is no AVX-512.
[[nodiscard]] const KernelTable* emulated_amx_table();

}  // namespace tributary::cpu
