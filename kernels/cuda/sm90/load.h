// Loads of the many-rows kernel into shared memory: queries by its compute threads, pages by one
// thread and the copy engine. It also makes slots without rows harmless.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/unit.h"
#include "kernels/cuda/sm90/layout.h"
#include "kernels/cuda/sm90/ptx90.h"
#include "kernels/cuda/sm90/work.h"

namespace tributary::cuda::sm90 {

inline constexpr int kRowChunks = kLatent * 2 / 16;

/// Starts copying the block's query rows into their tiles, zeros for rows that the task does not
/// have. Called by all compute threads. ptx::wait_copies(0), publish_writes and a barrier follow.
TRIBUTARY_DEVICE void load_queries(const AttendLaunch& launch, const Work& work,
                                   std::uint32_t shared) {
  constexpr int kWarps = kComputeThreads / 32;
  const int warp = static_cast<int>(ptx::thread()) / 32;
  const int lane = static_cast<int>(ptx::thread()) % 32;
  // Only elements are known to be aligned. Usually 16 bytes are; otherwise two bytes are copied at
  // a time.
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(launch.queries) | launch.query_stride_bytes) % 16 == 0;
  for (int row = warp; row < kRows; row += kWarps) {
    const int task_row = work.first_row + row;
    const bool exists = task_row < work.rows;
    const std::byte* from =
        exists ? row_query(launch, *work.task, task_row, kLatent * 2) : launch.queries;
    for (int chunk = lane; chunk < kRowChunks; chunk += 32) {
      const std::uint32_t to = chunk_at(query_at(shared, chunk / 8), row, chunk % 8);
      if (aligned) {
        ptx::copy_async(to, exists ? from + chunk * 16 : from, exists ? 16 : 0);
      } else {
        ptx::Chunk value{};
        const auto* elements = reinterpret_cast<const std::uint16_t*>(from) + chunk * 8;
        for (int i = 0; exists && i < 4; ++i) {
          value.words[i] = elements[2 * i] | static_cast<std::uint32_t>(elements[2 * i + 1]) << 16;
        }
        ptx::store_shared(to, value);
      }
    }
  }
  ptx::commit_copies();
}

/// The two bf16 of a word, 0 for one that is not finite.
TRIBUTARY_DEVICE std::uint32_t finite_only(std::uint32_t pair) {
  constexpr std::uint32_t kLow = 0x7f80;
  constexpr std::uint32_t kHigh = kLow << 16;
  if ((pair & kLow) == kLow) pair &= 0xffff0000U;
  if ((pair & kHigh) == kHigh) pair &= 0x0000ffffU;
  return pair;
}

/// Makes the values harmless in the slots of a page that some row of the unit does not see, which
/// begin at `seen`: a weight of 0 times NaN would be NaN. Slots from `used` on hold no row and
/// become zeros. In the others, elements that are not finite become 0; a row that sees them has a
/// score that is not finite. One group calls it for its tiles; publish_writes and a barrier follow.
TRIBUTARY_DEVICE void clear_unseen(std::uint32_t shared, int buffer, int group, int seen,
                                   int used) {
  constexpr int kChunks = kRowBytes / 16;
  const int thread = static_cast<int>(ptx::thread()) % kGroupThreads;
  const int first = seen < 0 ? 0 : seen;
  for (int i = first * kChunks + thread; i < kPage * kChunks; i += kGroupThreads) {
    const int slot = i / kChunks;
    for (int t = 0; t < kGroupTiles; ++t) {
      const std::uint32_t at =
          chunk_at(tile_at(shared, buffer, group * kGroupTiles + t), slot, i % kChunks);
      ptx::Chunk chunk{};
      if (slot < used) {
        chunk = ptx::load_shared_chunk(at);
        TRIBUTARY_UNROLL
        for (std::uint32_t& pair : chunk.words) pair = finite_only(pair);
      }
      ptx::store_shared(at, chunk);
    }
  }
}

/// Copies all pages of a part in the order of their use, by one thread of each block. A block
/// copies the tiles that it owns to all blocks of its cluster.
template <int kBlocks>
TRIBUTARY_DEVICE void load_pages(const AttendLaunch& launch, const CUtensorMap_st* map,
                                 std::uint32_t shared, int part, std::uint32_t rank) {
  std::uint32_t fills[kBuffers] = {};
  const std::uint64_t read_once = ptx::evict_first();
  const int end = launch.part_begin[part + 1];
  for (int unit = launch.part_begin[part]; unit < end; ++unit) {
    const Work work = work_of(launch, unit, kBlocks, rank);
    // Pages that no other unit reads leave the L2 cache to the states, which are merged there.
    const std::uint64_t policy = work.rows <= kBlocks * kRows ? read_once : 0;
    const std::int64_t first_page = layer_pages(launch, *work.task);
    const std::int32_t* table = launch.block_table + work.task->first_page;
    // Row of the cache, as the tensor map counts them, where a page of the leaf begins.
    const auto row_of = [&](int page) {
      return page < work.pages ? static_cast<std::int32_t>((first_page + table[page]) * kPage) : 0;
    };
    std::int32_t next = row_of(0);  // loaded a page before it is due
    for (int page = 0; page < work.pages; ++page) {
      const std::int32_t row = next;
      next = row_of(page + 1);
      const int buffer = page % kBuffers;
      const std::uint32_t parity = buffer == 0 ? fills[0]++ % 2 : fills[1]++ % 2;
      for (int i = 0; i < kTiles; ++i) {
        const int tile = tile_in_order(buffer, i);
        if (owner_of(tile, kBlocks) != rank) continue;
        ptx::wait_phase(empty_at(shared, buffer, tile), parity ^ 1U);
        const std::uint32_t to = tile_at(shared, buffer, tile);
        const std::uint32_t full = full_at(shared, buffer, tile);
        if constexpr (kBlocks == 1) {
          ptx::copy_tile(to, full, map, tile * kColumns, row, policy);
        } else {
          ptx::copy_tile_to_blocks(to, full, map, tile * kColumns, row, (1U << kBlocks) - 1,
                                   policy);
        }
      }
    }
  }
}

}  // namespace tributary::cuda::sm90
