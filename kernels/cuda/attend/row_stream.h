// Copies selected rows from the cache to shared memory, in the tiles and through the ring of
// tile_stream.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/few_rows_shape.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/attend/tile_stream.h"
#include "kernels/cuda/attend/unit.h"

namespace tributary::cuda {

template <int kThreads>
class RowStream {
 public:
  TRIBUTARY_DEVICE RowStream(const AttendLaunch& launch, int first_unit, int last_unit)
      : launch_(launch), unit_(first_unit), last_unit_(last_unit) {
    open_unit();
  }

  /// As TileStream::issue.
  TRIBUTARY_DEVICE void issue(std::uint32_t slot) {
    if (left_ > 0) {
      copy_row(slot);
      positions_ += kTileRows;
      left_ -= kTileRows;
      if (left_ > 0) {
        read_ahead();
      } else {
        ++unit_;
        open_unit();
      }
    }
    ptx::commit_copies();
  }

 private:
  // 8 threads take 128 consecutive bytes at a time, and a row of the tile.
  static_assert(kThreads == kTileRows * 8);
  TRIBUTARY_DEVICE static int tile_row() { return static_cast<int>(ptx::thread()) / 8; }

  // Goes to the next unit that attends to any row; if none is left, there are no more tiles.
  TRIBUTARY_DEVICE void open_unit() {
    left_ = 0;
    for (; unit_ < last_unit_; ++unit_) {
      const Unit unit = read_unit(launch_, unit_);
      const SelectedPart part = selected_part(launch_, unit.task);
      if (part.count == 0) continue;
      left_ = part.count;
      positions_ = part.positions;
      leaf_begin_ = static_cast<std::int32_t>(unit.task.leaf_begin);
      layer_ = launch_.item_layer[unit.task.item];
      first_page_ = unit.task.first_page;
      next_ = leaf_row(tile_row());
      read_ahead();
      return;
    }
  }

  /// Entry `index` from the next tile on, as a row of the leaf. Where the list has ended it is row
  /// 0, of which nothing is copied.
  TRIBUTARY_DEVICE std::int32_t leaf_row(int index) const {
    return index < left_ ? positions_[index] - leaf_begin_ : 0;
  }

  // A row's page is loaded one tile ahead of its use, its position two.
  TRIBUTARY_DEVICE void read_ahead() {
    slot_ = next_ % kPageTokens;
    page_ = launch_.block_table[first_page_ + next_ / kPageTokens];
    next_ = leaf_row(kTileRows + tile_row());
  }

  TRIBUTARY_DEVICE void copy_row(std::uint32_t slot) const {
    const int lane = static_cast<int>(ptx::thread()) % 8;
    // Rows that do not exist become zeros, as in TileStream.
    const std::uint32_t bytes = tile_row() < left_ ? kChunkBytes : 0;
    const std::byte* from =
        page_of(launch_, std::int64_t{layer_} * launch_.layout.pages, page_, kRowBytes) +
        static_cast<std::size_t>(slot_) * kRowBytes + static_cast<std::size_t>(lane) * kChunkBytes;
    const std::uint32_t to = slot + latent_offset(tile_row(), lane);
    TRIBUTARY_UNROLL
    for (int group = 0; group < kRowGroups; ++group) {
      ptx::copy_async(to + static_cast<std::uint32_t>(group) * 128, from + group * 128, bytes);
    }
  }

  const AttendLaunch& launch_;
  const std::int32_t* positions_ = nullptr;
  // Of the task, in as few registers as that takes.
  std::int32_t layer_ = 0;
  std::int32_t first_page_ = 0;
  std::int32_t leaf_begin_ = 0;
  int unit_;
  int last_unit_;
  int left_ = 0;  // entries of positions_, which begin with the next tile's
  // This thread's row: of the next tile, and of the one after it.
  std::int32_t page_ = 0;
  std::int32_t slot_ = 0;
  std::int32_t next_ = 0;
};

}  // namespace tributary::cuda
