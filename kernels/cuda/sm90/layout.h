// Layout of the many-rows kernel: the shapes of its tiles, the map of shared memory, its barriers,
// and the roles of its threads. kernels/cuda/sm90/README.md explains it.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/ptx.h"

namespace tributary::cuda::sm90 {

inline constexpr int kRank = 512;    // kv_lora_rank
inline constexpr int kLatent = 576;  // and 64 columns of RoPE
inline constexpr int kRows = 64;     // (token, head) rows of a block: M of the products
inline constexpr int kPage = 64;     // tokens of a page
inline constexpr int kColumns = 64;  // of a tile: the 128 bytes that a swizzle spans
inline constexpr int kTiles = kLatent / kColumns;
inline constexpr int kValueTiles = kRank / kColumns;
inline constexpr int kRopeTile = kValueTiles;  // the last; holds the weights after the scores
inline constexpr int kBuffers = 2;             // pages in shared memory
// Query tiles that a computing thread keeps in registers, 16 each: the last ones that it
// multiplies. A product of scores uses the full bandwidth of shared memory where both its operands
// lie there. With two, registers spill and ptxas serialises the products.
inline constexpr int kHeldTiles = 1;

// Two warpgroups compute. One thread of a third starts the copies of pages; it is a whole group
// because registers move between warpgroups: a thread starts with 168, and a computing thread needs
// 160 for sums and scores alone.
inline constexpr int kGroups = 2;
inline constexpr int kGroupThreads = 128;
inline constexpr int kComputeThreads = kGroups * kGroupThreads;
inline constexpr int kThreads = kComputeThreads + kGroupThreads;
inline constexpr int kStartRegisters = 65536 / kThreads / 8 * 8;
inline constexpr int kComputeRegisters = 232;
inline constexpr int kCopyRegisters = 40;
static_assert(kComputeRegisters * kComputeThreads + kCopyRegisters * kGroupThreads <=
                  kStartRegisters * kThreads,
              "who takes registers would wait for ever");
inline constexpr int kGroupTiles = kValueTiles / kGroups;  // of the values, and of the output
inline constexpr int kGroupColumns = kRank / kGroups;

inline constexpr std::uint32_t kRowBytes = kColumns * 2;
inline constexpr std::uint32_t kTileBytes = kRows * kRowBytes;
inline constexpr std::uint32_t kPageBytes = kTiles * kTileBytes;

// Shared memory of a block. The query first: all tiles are aligned to 1024 bytes.
inline constexpr std::uint32_t kQueryAt = 0;
inline constexpr std::uint32_t kPagesAt = kPageBytes;
inline constexpr std::uint32_t kFullAt = kPagesAt + kBuffers * kPageBytes;
inline constexpr std::uint32_t kEmptyAt = kFullAt + kBuffers * kTiles * 8;
inline constexpr std::uint32_t kPeakAt = kEmptyAt + kBuffers * kTiles * 8;
inline constexpr std::uint32_t kSumAt = kPeakAt + kGroups * kRows * 4;
inline constexpr std::uint32_t kScalesAt = kSumAt + kGroups * kRows * 4;
inline constexpr std::uint32_t kSharedBytes = kScalesAt + kBuffers * kPage * 16;
static_assert(kSharedBytes <= 227 * 1024, "what a block of sm_90 can have");

// Barriers of threads (0 is the whole block's).
inline constexpr std::uint32_t kWeightsReady = 1;  // and 2: the weights of an even, an odd page
inline constexpr std::uint32_t kUnitDone = 3;      // both groups
inline constexpr std::uint32_t kGroupOnly = 4;     // and 5: one group

TRIBUTARY_DEVICE std::uint32_t query_at(std::uint32_t shared, int tile) {
  return shared + kQueryAt + static_cast<std::uint32_t>(tile) * kTileBytes;
}
TRIBUTARY_DEVICE std::uint32_t tile_at(std::uint32_t shared, int buffer, int tile) {
  return shared + kPagesAt + static_cast<std::uint32_t>(buffer * kTiles + tile) * kTileBytes;
}
/// Ends a phase when the tile's bytes have arrived.
TRIBUTARY_DEVICE std::uint32_t full_at(std::uint32_t shared, int buffer, int tile) {
  return shared + kFullAt + static_cast<std::uint32_t>(buffer * kTiles + tile) * 8;
}
/// Ends a phase when the tile's last readers, in all blocks of the cluster, are done. Used in the
/// block that copies the tile.
TRIBUTARY_DEVICE std::uint32_t empty_at(std::uint32_t shared, int buffer, int tile) {
  return shared + kEmptyAt + static_cast<std::uint32_t>(buffer * kTiles + tile) * 8;
}
/// Of a page of codes: the four scales of a row.
TRIBUTARY_DEVICE std::uint32_t scales_at(std::uint32_t shared, int buffer, int row) {
  return shared + kScalesAt + static_cast<std::uint32_t>(buffer * kPage + row) * 16;
}
/// The block of a cluster of `blocks` that copies a tile, for all of them.
TRIBUTARY_DEVICE std::uint32_t owner_of(int tile, int blocks) {
  return static_cast<std::uint32_t>(tile % blocks);
}
/// Order in which a page's tiles are copied and multiplied. The tiles that become free first come
/// first: those of the group that computed the scores. RoPE is last, as its tile holds the weights.
TRIBUTARY_DEVICE int tile_in_order(int buffer, int i) {
  return i == kRopeTile ? i : (i + buffer * kGroupTiles) % kValueTiles;
}
/// 16 bytes of a row of a tile (128-byte swizzle).
TRIBUTARY_DEVICE std::uint32_t chunk_at(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row) * kRowBytes +
         static_cast<std::uint32_t>(chunk ^ (row & 7)) * 16;
}

}  // namespace tributary::cuda::sm90
