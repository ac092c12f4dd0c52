// Copies tiles of latent rows from the cache to shared memory: a ring of asynchronous copies that
// runs ahead of the arithmetic, across all units of a part without a break.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/few_rows_shape.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/attend/unit.h"

namespace tributary::cuda {

inline constexpr int kChunkBytes = 16;              // what a thread copies at once: 8 bf16
inline constexpr int kRowGroups = kRowBytes / 128;  // of 8 chunks

/// Byte offset of a chunk of a row of 1152 bytes. All rows begin in the same bank; within every 128
/// bytes chunks are permuted by the row's number, so that 8 rows of one column lie in 8 different
/// groups of banks.
TRIBUTARY_DEVICE std::uint32_t latent_offset(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kRowBytes + (chunk & ~7) * kChunkBytes +
                                    (((chunk ^ row) & 7) * kChunkBytes));
}

template <int kThreads>
class TileStream {
 public:
  TRIBUTARY_DEVICE TileStream(const AttendLaunch& launch, int first_unit, int last_unit)
      : launch_(launch), unit_(first_unit), last_unit_(last_unit) {
    open_unit();
  }

  /// Starts copying the next tile, if there is one, into the ring's slot at `slot`. Always closes
  /// the group of copies, so that the numbers of groups and tiles agree.
  TRIBUTARY_DEVICE void issue(std::uint32_t slot) {
    if (tile_ < tiles_) {
      copy_tile(slot);
      ++tile_;
      if (tile_ < tiles_) {
        page_ = next_page_;
        read_page_ahead();
      } else {
        ++unit_;
        open_unit();
      }
    }
    ptx::commit_copies();
  }

 private:
  static constexpr int kTilesPerPage = kPageTokens / kTileRows;
  static constexpr int kRowsAtOnce = kThreads / 8;  // 8 threads take 128 consecutive bytes

  // Goes to the next unit that sees any row; if none is left, there are no more tiles.
  TRIBUTARY_DEVICE void open_unit() {
    tile_ = 0;
    tiles_ = 0;
    for (; unit_ < last_unit_; ++unit_) {
      const Unit unit = read_unit(launch_, unit_);
      seen_ = visible_rows(unit.task, (unit.first_row + unit.rows - 1) / launch_.heads);
      if (seen_ == 0) continue;
      tiles_ = (seen_ + kTileRows - 1) / kTileRows;
      layer_pages_ = layer_pages(launch_, unit.task);
      pages_ = launch_.block_table + unit.task.first_page;
      page_ = pages_[0];
      read_page_ahead();
      return;
    }
  }

  // The table entry of the next tile: loaded one tile ahead of its use.
  TRIBUTARY_DEVICE void read_page_ahead() {
    if (tile_ + 1 < tiles_) next_page_ = pages_[(tile_ + 1) / kTilesPerPage];
  }

  TRIBUTARY_DEVICE void copy_tile(std::uint32_t slot) const {
    const int row_in_page = tile_ % kTilesPerPage * kTileRows;
    const std::byte* rows = page_of(launch_, layer_pages_, page_, kRowBytes) +
                            static_cast<std::size_t>(row_in_page) * kRowBytes;
    const int lane = static_cast<int>(ptx::thread()) % 8;
    TRIBUTARY_UNROLL
    for (int pass = 0; pass < kTileRows / kRowsAtOnce; ++pass) {
      const int row = static_cast<int>(ptx::thread()) / 8 + pass * kRowsAtOnce;
      // Rows that no token sees become zeros: their memory may hold NaN, and 0 * NaN is NaN.
      const std::uint32_t bytes = tile_ * kTileRows + row < seen_ ? kChunkBytes : 0;
      const std::byte* from = rows + static_cast<std::size_t>(row) * kRowBytes +
                              static_cast<std::size_t>(lane) * kChunkBytes;
      const std::uint32_t to = slot + latent_offset(row, lane);
      TRIBUTARY_UNROLL
      for (int group = 0; group < kRowGroups; ++group) {
        ptx::copy_async(to + static_cast<std::uint32_t>(group) * 128, from + group * 128, bytes);
      }
    }
  }

  const AttendLaunch& launch_;
  const std::int32_t* pages_ = nullptr;
  std::int64_t layer_pages_ = 0;
  int unit_;
  int last_unit_;
  int tile_ = 0;
  int tiles_ = 0;
  int seen_ = 0;
  std::int32_t page_ = 0;
  std::int32_t next_page_ = 0;
};

}  // namespace tributary::cuda
