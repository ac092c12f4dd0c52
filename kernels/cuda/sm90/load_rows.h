// Loads rows one by one into the many-rows kernel's tiles, by all threads of the copying group, in
// chunks of 16 bytes: selected rows, since a box of the copy engine holds neighbouring ones, and
// rows of codes, which become bf16 where they lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/attend/unit.h"
#include "kernels/cuda/sm90/layout.h"
#include "kernels/cuda/sm90/ptx90.h"
#include "kernels/cuda/sm90/work.h"

namespace tributary::cuda::sm90 {

/// Warps that announce a tile, one arrival each.
inline constexpr std::uint32_t kCopyWarps = kGroupThreads / 32;

template <bool kSelected, bool kCodes>
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
      const LeafTask& task = launch_.tasks[launch_.units[unit].task];
      if constexpr (kSelected) {
        copy(task, selected_part(launch_, task));
      } else {
        copy(task, {nullptr, work_of(launch_, unit, 1, 0).seen});
      }
    }
  }

 private:
  // 8 threads take 128 consecutive bytes, which is what a tile has of a row of bf16, and 4 its 64
  // codes.
  static constexpr int kRowThreads = kCodes ? kColumns / kChunkCodes : 8;
  static constexpr int kRowsAtOnce = kGroupThreads / kRowThreads;
  static constexpr int kPasses = kPage / kRowsAtOnce;  // rows of a thread, in each page
  static constexpr int kCodesOfScale = static_cast<int>(fp8_ds_mla::kTile);
  // Tiles whose copies are on their way while the next one's are started, and which nobody knows
  // of yet. Their readers must be able to give back what the next one is waiting for: with more
  // than four, group 1 would wait for a page of which the rest waits for tiles that it holds.
  static constexpr int kInFlight = 3;

  /// Rows of a leaf: those of `part`, or, if that names none, as many from the first one on.
  TRIBUTARY_DEVICE void copy(const LeafTask& task, const SelectedPart& part) {
    const auto leaf_begin = static_cast<std::int32_t>(task.leaf_begin);
    const auto first_page = static_cast<std::uint32_t>(layer_pages(launch_, task));
    const std::int32_t* table = launch_.block_table + task.first_page;
    // This thread's rows: as places in the list, in the leaf, and in the cache.
    const auto place = [&](int page, int pass) { return page * kPage + row_of_pass(pass); };
    const auto leaf_row = [&](int at) {
      if (at >= part.count) return 0U;
      return static_cast<std::uint32_t>(kSelected ? part.positions[at] - leaf_begin : at);
    };
    const auto cache_row = [&](std::uint32_t row) {
      return (first_page + static_cast<std::uint32_t>(table[row / kPage])) * kPage + row % kPage;
    };
    // Of all rows a page's first says where the others are.
    constexpr int kHeld = kSelected ? kPasses : 1;
    const auto held = [&](int page, int i) { return kSelected ? place(page, i) : page * kPage; };
    std::uint32_t rows[kHeld];
    std::uint32_t next[kHeld];
    TRIBUTARY_UNROLL
    for (int i = 0; i < kHeld; ++i) rows[i] = cache_row(leaf_row(held(0, i)));
    for (int page = 0; page * kPage < part.count; ++page) {
      const int buffer = page % kBuffers;
      const std::uint32_t parity = parities_ >> buffer & 1U;
      parities_ ^= 1U << buffer;
      TRIBUTARY_UNROLL
      for (int i = 0; i < kTiles; ++i) {
        // The next page's rows: each step's loads arrive while tiles are copied.
        TRIBUTARY_UNROLL
        for (int j = 0; j < kHeld; ++j) {
          if (i == 0) next[j] = leaf_row(held(page + 1, j));
          if (i == kTiles / 3) next[j] = cache_row(next[j]);
        }
        const int tile = tile_in_order(buffer, i);
        ptx::wait_phase(empty_at(shared_, buffer, tile), parity ^ 1U);
        TRIBUTARY_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
          // Slots without a row become zeros.
          const std::uint32_t bytes = place(page, pass) < part.count ? 16 : 0;
          const std::uint32_t row = kSelected
                                        ? rows[kSelected ? pass : 0]
                                        : rows[0] + static_cast<std::uint32_t>(row_of_pass(pass));
          if constexpr (kCodes) {
            if (i == 0) copy_scales(buffer, pass, row, bytes);
            copy_codes(buffer, tile, pass, row, bytes);
          } else {
            copy_chunk(buffer, tile, pass, row, bytes);
          }
        }
        ptx::commit_copies();
        if (i >= kInFlight) {
          announce(buffer, i - kInFlight, kInFlight);
        } else if (page > 0) {
          announce(1 - buffer, kTiles + i - kInFlight, kInFlight);
        }
      }
      TRIBUTARY_UNROLL
      for (int i = 0; i < kHeld; ++i) rows[i] = next[i];
    }
    // The next unit begins with the first buffer, whichever was the last.
    if (part.count == 0) return;
    const int last = (part.count - 1) / kPage % kBuffers;
    TRIBUTARY_UNROLL
    for (int left = kInFlight; left > 0; --left) announce(last, kTiles - left, left - 1);
  }

  [[nodiscard]] TRIBUTARY_DEVICE int row_of_pass(int pass) const {
    return pass * kRowsAtOnce + thread_ / kRowThreads;
  }
  [[nodiscard]] TRIBUTARY_DEVICE int chunk() const { return thread_ % kRowThreads; }

  [[nodiscard]] TRIBUTARY_DEVICE const std::byte* row_at(std::uint32_t row) const {
    const std::size_t bytes =
        kCodes ? code_row_bytes(launch_.layout.row_format, kRank, kLatent - kRank) : kLatent * 2;
    return launch_.cache + static_cast<std::size_t>(row) * bytes;
  }

  TRIBUTARY_DEVICE void copy_chunk(int buffer, int tile, int pass, std::uint32_t row,
                                   std::uint32_t bytes) const {
    ptx::copy_async(chunk_at(tile_at(shared_, buffer, tile), row_of_pass(pass), chunk()),
                    row_at(row) + tile * static_cast<int>(kRowBytes) + chunk() * 16, bytes);
  }

  /// Whether a tile arrives as codes, or is bf16 in the cache too.
  [[nodiscard]] TRIBUTARY_DEVICE bool of_codes(int tile) const {
    return tile != kRopeTile || !scales_in_row(launch_.layout.row_format);
  }
  /// Where this thread's codes of a row arrive: in the half of the row's place in which those of
  /// the next row, which come with them, find other banks.
  [[nodiscard]] TRIBUTARY_DEVICE std::uint32_t codes_at(int buffer, int tile, int row) const {
    return chunk_at(tile_at(shared_, buffer, tile), row, chunk() + row % 2 * kRowThreads);
  }

  TRIBUTARY_DEVICE void copy_scales(int buffer, int pass, std::uint32_t row,
                                    std::uint32_t bytes) const {
    if (chunk() != 0 || !scales_in_row(launch_.layout.row_format)) return;
    ptx::copy_async(scales_at(shared_, buffer, row_of_pass(pass)), row_at(row) + kRank, bytes);
  }

  TRIBUTARY_DEVICE void copy_codes(int buffer, int tile, int pass, std::uint32_t row,
                                   std::uint32_t bytes) const {
    const int at = row_of_pass(pass);
    if (of_codes(tile)) {
      ptx::copy_async(codes_at(buffer, tile, at), row_at(row) + tile * kColumns + chunk() * 16,
                      bytes);
      return;
    }
    const std::byte* rope = row_at(row) + fp8_ds_mla::Parts(kRank, 0).rope;
    TRIBUTARY_UNROLL_BY(1)
    for (int i = chunk(); i < 8; i += kRowThreads) {
      ptx::copy_async(chunk_at(tile_at(shared_, buffer, tile), at, i), rope + i * 16, bytes);
    }
  }

  /// Makes this thread's codes of a tile bf16.
  TRIBUTARY_DEVICE void widen_codes(int buffer, int tile) const {
    if (!of_codes(tile)) return;
    ptx::sync_warp();       // the row's other threads have theirs, and its scales
    TRIBUTARY_UNROLL_BY(1)  // unrolled, and in copy_codes, addresses of both passes spill
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = row_of_pass(pass);
      const ptx::Chunk codes = ptx::load_shared_chunk(codes_at(buffer, tile, row));
      const RowFormat& format = launch_.layout.row_format;
      const float scale =
          scales_in_row(format)
              ? ptx::load_shared(scales_at(shared_, buffer, row) +
                                 static_cast<std::uint32_t>(tile / (kCodesOfScale / kColumns)) * 4)
              : format.scale;
      ptx::sync_warp();  // all of the row's codes have been read
      TRIBUTARY_UNROLL
      for (int half = 0; half < 2; ++half) {
        ptx::store_shared(chunk_at(tile_at(shared_, buffer, tile), row, 2 * chunk() + half),
                          widen(codes, half, scale));
      }
    }
  }

  /// Waits until at most `pending` later tiles are in flight, then tells the readers of the tile
  /// that is the i-th in order.
  TRIBUTARY_DEVICE void announce(int buffer, int i, int pending) const {
    const int tile = tile_in_order(buffer, i);
    ptx::wait_copies(pending);
    if constexpr (kCodes) widen_codes(buffer, tile);
    ptx::publish_writes();
    ptx::sync_warp();
    if (thread_ % 32 == 0) ptx::arrive_in_block(full_at(shared_, buffer, tile), 0);
  }

  const AttendLaunch& launch_;
  std::uint32_t shared_;
  int thread_;
  std::uint32_t parities_ = 0;  // a bit for each buffer: of how often it was filled
};

}  // namespace tributary::cuda::sm90
