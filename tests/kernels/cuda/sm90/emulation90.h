// The functions of kernels/cuda/sm90/ptx90.h and products.h on emulated threads (simt.h): what
// tests must provide besides a launch.
//
// Adverse where the PTX ISA leaves a choice. A tile copy fills its destination with NaN when it is
// issued and lands when somebody waits for its barrier, so reads without a wait, and reads that
// come too late, are detected. A product reads its operands when the first thread issues it and
// again when each warp waits for it, and faults where they differ; warps end at different times;
// until then the sums are NaN in the threads' registers, and touching them is a fault. Products and
// copies fault on what a thread wrote and did not publish to them (fence.proxy.async). Descriptors
// are decoded by the ISA's layouts for the 128-byte swizzle, K-major and MN-major. Not modelled:
// the rest of the memory model, the rounding inside a product (here exact, then one rounding), and
// the device's own limits: registers, room for clusters, time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

struct CUtensorMap_st;

namespace tributary::simt {

/// A tensor map of bf16 rows [rows, columns], boxes of 64 x 64, 128-byte swizzle.
struct TileMap {
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  [[nodiscard]] const CUtensorMap_st* get() const noexcept {
    return reinterpret_cast<const CUtensorMap_st*>(this);
  }
};

/// Of all blocks since the program began; a prefetch does nothing else here.
inline std::atomic<std::uint64_t> prefetched_tiles = 0;

}  // namespace tributary::simt
