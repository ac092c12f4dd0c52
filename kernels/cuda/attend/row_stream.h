// Copies rows one by one from the cache to shared memory, in the tiles and through the ring of
// tile_stream.h: selected ones, or rows of codes, which become bf16 where they lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/attend/few_rows_shape.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/attend/tile_stream.h"
#include "kernels/cuda/attend/unit.h"

namespace tributary::cuda {

template <int kThreads, bool kSelected, bool kCodes>
class RowStream {
 public:
  TRIBUTARY_DEVICE RowStream(const AttendLaunch& launch, int first_unit, int last_unit)
      : launch_(launch), unit_(first_unit), last_unit_(last_unit) {
    open_unit();
  }

  /// As TileStream::issue.
  TRIBUTARY_DEVICE void issue(std::uint32_t slot) {
    if (left_ > 0) {
      if constexpr (kCodes) {
        copy_codes(slot);
      } else {
        copy_row(slot);
      }
      if constexpr (kSelected) {
        positions_ += kTileRows;
      } else {
        first_ += kTileRows;
      }
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

  /// Of codes, once this thread's copies to the slot have arrived: makes them bf16.
  TRIBUTARY_DEVICE void widen(std::uint32_t slot) const {
    const std::uint32_t from = row_at(slot);
    const int lane = row_lane();
    ptx::sync_warp();  // the row's other threads have theirs
    // A thread's four chunks lie in the row's four tiles of codes.
    static_assert(kLatentRank == 4 * kRowThreads * kChunkCodes);
    static_assert(kRowThreads * kChunkCodes == fp8_ds_mla::kTile);
    ptx::Chunk codes[4];
    TRIBUTARY_UNROLL
    for (int i = 0; i < 4; ++i) codes[i] = ptx::load_shared_chunk(chunk_of(from, lane + 8 * i));
    const bool own_scales = scales_in_row(launch_.layout.row_format);
    const float scale = launch_.layout.row_format.scale;
    ptx::Chunk scales{};
    ptx::Chunk rope{};
    if (own_scales) {
      scales = ptx::load_shared_chunk(chunk_of(from, kCodeChunks));
      rope = ptx::load_shared_chunk(chunk_of(from, kCodeChunks + 1 + lane));
    } else if (lane < kRopeDim / kChunkCodes) {
      rope = ptx::load_shared_chunk(chunk_of(from, kCodeChunks + lane));
    }
    ptx::sync_warp();  // all of the row has been read
    TRIBUTARY_UNROLL
    for (int i = 0; i < 4; ++i) {
      store_values(slot, lane + 8 * i, codes[i],
                   own_scales ? ptx::float_of(scales.words[i]) : scale);
    }
    if (own_scales) {
      ptx::store_shared(slot + latent_offset(tile_row(), 2 * kCodeChunks + lane), rope);
    } else if (lane < kRopeDim / kChunkCodes) {
      store_values(slot, kCodeChunks + lane, rope, scale);
    }
  }

 private:
  // 8 threads take 128 consecutive bytes at a time, and a row of the tile.
  static constexpr int kRowThreads = 8;
  static_assert(kThreads == kTileRows * kRowThreads);
  TRIBUTARY_DEVICE static int tile_row() { return static_cast<int>(ptx::thread()) / kRowThreads; }
  TRIBUTARY_DEVICE static int row_lane() { return static_cast<int>(ptx::thread()) % kRowThreads; }

  // Where a row of codes arrives: as it is, at the beginning of its place in the tile.
  static constexpr int kCodeChunks = kLatentRank / kChunkCodes;
  TRIBUTARY_DEVICE static std::uint32_t row_at(std::uint32_t slot) {
    return slot + static_cast<std::uint32_t>(tile_row() * kRowBytes);
  }
  TRIBUTARY_DEVICE static std::uint32_t chunk_of(std::uint32_t row, int chunk) {
    return row + static_cast<std::uint32_t>(chunk * kChunkBytes);
  }
  TRIBUTARY_DEVICE static void store_values(std::uint32_t slot, int chunk, const ptx::Chunk& codes,
                                            float scale) {
    TRIBUTARY_UNROLL
    for (int half = 0; half < 2; ++half) {
      ptx::store_shared(slot + latent_offset(tile_row(), 2 * chunk + half),
                        cuda::widen(codes, half, scale));
    }
  }

  // Goes to the next unit that attends to any row; if none is left, there are no more tiles.
  TRIBUTARY_DEVICE void open_unit() {
    left_ = 0;
    for (; unit_ < last_unit_; ++unit_) {
      const Unit unit = read_unit(launch_, unit_);
      if constexpr (kSelected) {
        const SelectedPart part = selected_part(launch_, unit.task);
        if (part.count == 0) continue;
        left_ = part.count;
        positions_ = part.positions;
        leaf_begin_ = static_cast<std::int32_t>(unit.task.leaf_begin);
      } else {
        left_ = visible_rows(unit.task, (unit.first_row + unit.rows - 1) / launch_.heads);
        if (left_ == 0) continue;
        first_ = 0;
      }
      layer_ = launch_.item_layer[unit.task.item];
      first_page_ = unit.task.first_page;
      next_ = leaf_row(tile_row());
      read_ahead();
      return;
    }
  }

  /// Row or entry `index` from the next tile on, as a row of the leaf. Behind the last it is row 0,
  /// of which nothing is copied.
  TRIBUTARY_DEVICE std::int32_t leaf_row(int index) const {
    if (index >= left_) return 0;
    if constexpr (kSelected) return positions_[index] - leaf_begin_;
    return first_ + index;
  }

  // A row's page is loaded one tile ahead of its use, its position two.
  TRIBUTARY_DEVICE void read_ahead() {
    slot_ = next_ % kPageTokens;
    page_ = launch_.block_table[first_page_ + next_ / kPageTokens];
    next_ = leaf_row(kTileRows + tile_row());
  }

  TRIBUTARY_DEVICE void copy_codes(std::uint32_t slot) const {
    const std::size_t row_bytes = code_row_bytes(launch_.layout.row_format, kLatentRank, kRopeDim);
    const std::uint32_t bytes = tile_row() < left_ ? kChunkBytes : 0;  // as in copy_row
    const std::byte* from =
        page_of(launch_, std::int64_t{layer_} * launch_.layout.pages, page_, row_bytes) +
        static_cast<std::size_t>(slot_) * row_bytes;
    const int chunks = static_cast<int>(row_bytes) / kChunkBytes;
    for (int chunk = row_lane(); chunk < chunks; chunk += kRowThreads) {
      ptx::copy_async(chunk_of(row_at(slot), chunk), from + chunk * kChunkBytes, bytes);
    }
  }

  TRIBUTARY_DEVICE void copy_row(std::uint32_t slot) const {
    const int lane = row_lane();
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
  int left_ = 0;   // rows, or entries of positions_, which begin with the next tile's
  int first_ = 0;  // row of the next tile, of all rows
  // This thread's row: of the next tile, and of the one after it.
  std::int32_t page_ = 0;
  std::int32_t slot_ = 0;
  std::int32_t next_ = 0;
};

}  // namespace tributary::cuda
