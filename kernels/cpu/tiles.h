// Whether tiles of AMX are usable, and how fast they can be at most.
#pragma once

#include <cstddef>

namespace tributary::cpu {

/// Whether this processor has tiles for bf16 and the kernel of the system lets this process use
/// them. Asks once; false also where a thread's alternative signal stack has no room for tiles.
[[nodiscard]] bool tiles_usable();

/// Multiplies tiles in registers, `rounds` times kTileProducts of them, on the calling thread: the
/// yardstick of benchmarks. Only where tiles are usable.
void multiply_tiles(std::size_t rounds);
inline constexpr std::size_t kTileProducts = 8;
/// Floating-point operations of one product: 16 x 16 sums of 32 products.
inline constexpr std::size_t kTileProductFlop = std::size_t{2} * 16 * 16 * 32;

}  // namespace tributary::cpu
