// Internal to kernels/cuda: the grids of a layer's launches, on a device and on emulated threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

/// Approximate elements per thread of an element-wise kernel: with fewer a block has too little
/// work.
inline constexpr std::int64_t kElementsPerThread = 4;
/// Largest number of blocks that share a record: together with the records enough to fill any
/// device.
inline constexpr std::int64_t kMaxShares = 64;

[[nodiscard]] inline unsigned shares(std::int64_t elements, unsigned threads) {
  const std::int64_t per_block = kElementsPerThread * threads;
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((elements + per_block - 1) / per_block, 1, kMaxShares));
}

/// Whether rows of codes are converted, a block a row, or plain ones, in shares().
[[nodiscard]] inline bool of_codes(const ConvertArgs& args) {
  return holds_codes(args.src_row.format) || holds_codes(args.dst_row.format);
}

/// Whether all sizes and addresses are of whole ptx::Chunk.
[[nodiscard]] inline bool in_chunks(std::initializer_list<std::size_t> values) {
  return std::all_of(values.begin(), values.end(),
                     [](std::size_t value) { return value % sizeof(ptx::Chunk) == 0; });
}
[[nodiscard]] inline bool in_chunks(const AppendLaunch& launch) {
  return in_chunks({launch.row_bytes, launch.source_stride_bytes,
                    reinterpret_cast<std::size_t>(launch.source),
                    reinterpret_cast<std::size_t>(launch.cache)});
}
[[nodiscard]] inline bool in_chunks(const GatherLaunch& launch) {
  return in_chunks({launch.record_bytes, reinterpret_cast<std::size_t>(launch.src),
                    reinterpret_cast<std::size_t>(launch.dst)});
}

}  // namespace tributary::cuda
