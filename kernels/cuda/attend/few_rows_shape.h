// Sizes of the few-rows kernel, for the host's choice and for the kernel itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tributary::cuda {

inline constexpr int kLatentRank = 512;  // the tensor-core kernels take DeepSeek's shape only
inline constexpr int kRopeDim = 64;
inline constexpr int kLatentDim = kLatentRank + kRopeDim;
inline constexpr int kRowBytes = kLatentDim * 2;  // of a latent row or a query, bf16

/// Latent rows of a tile: half a page. Five such tiles fit into the shared memory of sm_90 (four in
/// flight are 147 KB, which 36 GB/s a multiprocessor bring in 4 us), and two into the 99 KB of
/// sm_86, sm_89 and sm_120. It is still two steps of 16 for the product with the values.
inline constexpr int kTileRows = 32;
inline constexpr int kTileBytes = kTileRows * kRowBytes;
/// Latent rows that one product of 16 x 8 scores takes.
inline constexpr int kGroupRows = 8;
inline constexpr int kGroups = kTileRows / kGroupRows;

/// Tiles of a ring: one is in use, the others are in flight. More than five are not needed to cover
/// the memory's latency; fewer than two cannot work.
inline constexpr int kMostStages = 5;
inline constexpr int kFewestStages = 2;

/// Units of 16, 32 or 64 rows, in tiles of 16.
inline constexpr std::array<int, 3> kRowTileCounts{1, 2, 4};

/// The largest unit after which leaves are merged: more rows leave no registers for that.
inline constexpr int kMostMergedRows = 32;

/// Offsets in shared memory, in bytes.
struct FewRowsLayout {
  std::uint32_t queries = 0;  // [rows][kLatentDim] bf16, chunks permuted
  std::uint32_t weights = 0;  // [rows][kTileRows] bf16, chunks permuted
  std::uint32_t maxima = 0;   // [rows][kGroups] fp32
  std::uint32_t sums = 0;     // likewise
  std::uint32_t tiles = 0;    // [stages][kTileRows][kLatentDim] bf16, chunks permuted
};
[[nodiscard]] constexpr FewRowsLayout few_rows_layout(int row_tiles) {
  const auto rows = static_cast<std::uint32_t>(row_tiles) * 16;
  FewRowsLayout layout;
  layout.weights = rows * kRowBytes;
  layout.maxima = layout.weights + rows * kTileRows * 2;
  layout.sums = layout.maxima + rows * kGroups * 4;
  layout.tiles = layout.sums + rows * kGroups * 4;
  return layout;
}

[[nodiscard]] constexpr std::size_t few_rows_bytes(int row_tiles, int stages) {
  return few_rows_layout(row_tiles).tiles + static_cast<std::size_t>(stages) * kTileBytes;
}

/// What a multiprocessor keeps of its shared memory for each block.
inline constexpr std::size_t kReservedBytes = 1024;

/// As many stages as fit into each of `blocks` blocks of a multiprocessor that gives a single one
/// `shared_bytes`; 0 if the kernel does not fit at all.
[[nodiscard]] constexpr int few_rows_stages(int row_tiles, std::size_t shared_bytes,
                                            int blocks = 1) {
  const std::size_t of_block = (shared_bytes + kReservedBytes) / static_cast<std::size_t>(blocks);
  for (int stages = kMostStages; stages >= kFewestStages; --stages) {
    if (few_rows_bytes(row_tiles, stages) + kReservedBytes <= of_block) return stages;
  }
  return 0;
}

/// Blocks of a multiprocessor that has work for them: two of 16 rows where both have room for a
/// ring. One then computes while the other waits at its barriers, which makes up for the shorter
/// ring; more rows leave no registers for it.
[[nodiscard]] constexpr int few_rows_blocks(int row_tiles, std::size_t shared_bytes) {
  return row_tiles == 1 && few_rows_stages(1, shared_bytes, 2) > 0 ? 2 : 1;
}

}  // namespace tributary::cuda
