// Loads selected rows into the many-rows kernel's tiles, by all threads of the copying group: in
// chunks of 16 bytes, since a box of the copy engine holds neighbouring rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/unit.h"
#include "kernels/cuda/sm90/layout.h"
#include "kernels/cuda/sm90/ptx90.h"

namespace tributary::cuda::sm90 {

/// Warps that announce a tile, one arrival each.
inline constexpr std::uint32_t kCopyWarps = kGroupThreads / 32;

class RowLoader {
 public:
  TRIBUTARY_DEVICE RowLoader(const AttendLaunch& launch, std::uint32_t shared)
      : launch_(launch),
        shared_(shared),
        thread_(static_cast<int>(ptx::thread()) % kGroupThreads) {}

  /// Copies the rows of all units of a part in the order of their use.
  TRIBUTARY_DEVICE void run(int part) {
    const int end = launch_.part_begin[part + 1];
    for (int unit = launch_.part_begin[part]; unit < end; ++unit) {
      copy(launch_.tasks[launch_.units[unit].task]);
    }
  }

 private:
  // 8 threads take 128 consecutive bytes, which is what a tile has of a row.
  static constexpr int kRowsAtOnce = kGroupThreads / 8;
  static constexpr int kPasses = kPage / kRowsAtOnce;  // rows of a thread, in each page
  // Tiles whose copies are on their way while the next one's are started, and which nobody knows
  // of yet. Their readers must be able to give back what the next one is waiting for: with more
  // than four, group 1 would wait for a page of which the rest waits for tiles that it holds.
  static constexpr int kInFlight = 3;

  TRIBUTARY_DEVICE void copy(const LeafTask& task) {
    const SelectedPart part = selected_part(launch_, task);
    const auto leaf_begin = static_cast<std::int32_t>(task.leaf_begin);
    const auto first_page = static_cast<std::uint32_t>(layer_pages(launch_, task));
    const std::int32_t* table = launch_.block_table + task.first_page;
    // This thread's rows: as places in the list, in the leaf, and in the cache.
    const auto place = [&](int page, int pass) {
      return page * kPage + pass * kRowsAtOnce + thread_ / 8;
    };
    const auto leaf_row = [&](int at) {
      return at < part.count ? static_cast<std::uint32_t>(part.positions[at] - leaf_begin) : 0U;
    };
    const auto cache_row = [&](std::uint32_t row) {
      return (first_page + static_cast<std::uint32_t>(table[row / kPage])) * kPage + row % kPage;
    };
    std::uint32_t rows[kPasses];
    std::uint32_t next[kPasses];
    TRIBUTARY_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) rows[pass] = cache_row(leaf_row(place(0, pass)));
    for (int page = 0; page * kPage < part.count; ++page) {
      const int buffer = page % kBuffers;
      const std::uint32_t parity = parities_ >> buffer & 1U;
      parities_ ^= 1U << buffer;
      TRIBUTARY_UNROLL
      for (int i = 0; i < kTiles; ++i) {
        // The next page's rows: each step's loads arrive while tiles are copied.
        TRIBUTARY_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
          if (i == 0) next[pass] = leaf_row(place(page + 1, pass));
          if (i == kTiles / 3) next[pass] = cache_row(next[pass]);
        }
        const int tile = tile_in_order(buffer, i);
        ptx::wait_phase(empty_at(shared_, buffer, tile), parity ^ 1U);
        TRIBUTARY_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
          // Slots without a row become zeros.
          copy_chunk(buffer, tile, pass, rows[pass], place(page, pass) < part.count ? 16 : 0);
        }
        ptx::commit_copies();
        if (i >= kInFlight) {
          announce(buffer, i - kInFlight, kInFlight);
        } else if (page > 0) {
          announce(1 - buffer, kTiles + i - kInFlight, kInFlight);
        }
      }
      TRIBUTARY_UNROLL
      for (int pass = 0; pass < kPasses; ++pass) rows[pass] = next[pass];
    }
    // The next unit begins with the first buffer, whichever was the last.
    if (part.count == 0) return;
    const int last = (part.count - 1) / kPage % kBuffers;
    TRIBUTARY_UNROLL
    for (int left = kInFlight; left > 0; --left) announce(last, kTiles - left, left - 1);
  }

  [[nodiscard]] TRIBUTARY_DEVICE const std::byte* row_at(std::uint32_t row) const {
    return launch_.cache + static_cast<std::size_t>(row) * (kLatent * 2);
  }

  TRIBUTARY_DEVICE void copy_chunk(int buffer, int tile, int pass, std::uint32_t row,
                                   std::uint32_t bytes) const {
    const int chunk = thread_ % 8;
    ptx::copy_async(
        chunk_at(tile_at(shared_, buffer, tile), pass * kRowsAtOnce + thread_ / 8, chunk),
        row_at(row) + tile * static_cast<int>(kRowBytes) + chunk * 16, bytes);
  }

  /// Waits until at most `pending` later tiles are in flight, then tells the readers of the tile
  /// that is the i-th in order.
  TRIBUTARY_DEVICE void announce(int buffer, int i, int pending) const {
    ptx::wait_copies(pending);
    ptx::publish_writes();
    ptx::sync_warp();
    if (thread_ % 32 == 0) {
      ptx::arrive_in_block(full_at(shared_, buffer, tile_in_order(buffer, i)), 0);
    }
  }

  const AttendLaunch& launch_;
  std::uint32_t shared_;
  int thread_;
  std::uint32_t parities_ = 0;  // a bit for each buffer: of how often it was filled
};

}  // namespace tributary::cuda::sm90
