// The many-rows kernel: absorbed attention of 64 (token, head) rows a block over whole leaves, by
// warpgroup products. Two groups take the pages of a leaf in turn for the scores, and half of the
// output's columns each. README.md in this folder explains it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/merge.h"
#include "kernels/cuda/attend/unit.h"
#include "kernels/cuda/sm90/layout.h"
#include "kernels/cuda/sm90/load.h"
#include "kernels/cuda/sm90/load_rows.h"
#include "kernels/cuda/sm90/products.h"
#include "kernels/cuda/sm90/ptx90.h"
#include "kernels/cuda/sm90/softmax.h"
#include "kernels/cuda/sm90/work.h"

namespace tributary::cuda::sm90 {

/// One group of one block. kBlocks of the cluster share each page. With kSelected a unit is of one
/// token, and its pages are of selected rows: all rows of the unit see all of them. With kRowByRow
/// a block's own threads fill its pages, not the copy engine.
template <int kBlocks, int kGroup, bool kSelected, bool kRowByRow>
class Group {
 public:
  TRIBUTARY_DEVICE Group(const AttendLaunch& launch, std::uint32_t shared, std::uint32_t rank)
      : launch_(launch),
        shared_(shared),
        rank_(rank),
        rows_(ptx::rows_operand(shared)),
        columns_(ptx::columns_operand(shared, kTileBytes)),
        scale_(ptx::multiply(launch.softmax_scale, kLog2E)) {}

  TRIBUTARY_DEVICE void run(int part) {
    const int end = launch_.part_begin[part + 1];
    int unit = launch_.part_begin[part];
    if (unit == end) return;
    load_queries(launch_, work_at(unit), shared_);
    float output[128];
    for (; unit < end; ++unit) {
      SoftmaxState state;
      attend(unit, state, output);
      const float sums[2] = {store_sum(state, 0), store_sum(state, 1)};
      ptx::meet_at(kUnitDone, kComputeThreads);
      // The queries are not read any more; the next ones arrive while the states are written.
      if (unit + 1 < end) load_queries(launch_, work_at(unit + 1), shared_);
      store_states(work_at(unit), state, sums, output);
      if (tree_after(launch_, unit) != nullptr) {
        ptx::meet_at(kUnitDone, kComputeThreads);  // all states of these rows are there
        merge_unit(launch_, unit, kRows, kComputeThreads / 32, static_cast<int>(rank_) * kRows);
      }
    }
  }

 private:
  static constexpr int kOther = 1 - kGroup;
  static constexpr int kFirstTile = kGroup * kGroupTiles;
  static constexpr int kSteps = kPage / 16;  // of a product over a page's tokens

  /// Reads the work anew wherever it is needed: registers are few, and only two of its fields are
  /// needed often.
  [[nodiscard]] TRIBUTARY_DEVICE Work work_at(int unit) const {
    return work_of(launch_, unit, kBlocks, rank_);
  }
  /// The pages of a unit.
  struct Pages {
    int unit, count, seen_by_all;  // as in Work
  };

  TRIBUTARY_DEVICE void attend(int unit, SoftmaxState& state, float (&output)[128]) {
    TRIBUTARY_UNROLL
    for (float& sum : output) sum = 0;
    const Work work = work_at(unit);
    Pages pages{unit, work.pages, work.seen_by_all};
    if constexpr (kSelected) {
      const int count = selected_part(launch_, *work.task).count;
      pages = {unit, (count + kPage - 1) / kPage, count};
    }
    ptx::wait_copies(0);
    ptx::publish_writes();
    ptx::meet_at(kUnitDone, kComputeThreads);
    hold_queries();
    for (int page = 0; page < pages.count; page += 2) {
      const bool pair = page + 1 < pages.count;
      if constexpr (kGroup == 0) {
        own_scores(pages, page);
        weigh_own(pages, state, page);
        rescale(output, factor_);
        begin_own_values(output);
        end_values(output, 0);
        if (pair) {
          follow_other(pages, state, page + 1);
          rescale(output, factor_);
          begin_other_values(output);
          end_values(output, 1);
        }
      } else {
        if (pair) own_scores(pages, page + 1);
        follow_other(pages, state, page);
        rescale(output, factor_);
        begin_other_values(output);
        if (pair) weigh_own(pages, state, page + 1);
        end_values(output, 0);
        if (pair) {
          rescale(output, factor_);
          begin_own_values(output);
          end_values(output, 1);
        }
      }
    }
  }

  /// Loads the tiles of queries that this group's products take from registers.
  TRIBUTARY_DEVICE void hold_queries() {
    TRIBUTARY_UNROLL
    for (int i = 0; i < kHeldTiles; ++i) {
      const std::uint32_t tile = query_at(shared_, tile_in_order(kGroup, kTiles - kHeldTiles + i));
      TRIBUTARY_UNROLL
      for (int step = 0; step < kColumns / 16; ++step) {
        ptx::load_matrices(fragment_at(tile, step), held_[i][step]);
      }
    }
  }

  /// Scores of this group's page of a pair, masked.
  TRIBUTARY_DEVICE void own_scores(const Pages& pages, int page) {
    TRIBUTARY_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      const int tile = tile_in_order(kGroup, i);
      ptx::wait_phase(full_at(shared_, kGroup, tile), fills_[kGroup] % 2);
      ptx::begin_products(scores_);
      TRIBUTARY_UNROLL
      for (std::uint32_t step = 0; step < kColumns / 16; ++step) {
        const std::uint64_t key = ptx::further(rows_, tile_at(0, kGroup, tile) + step * 32);
        const bool more = i > 0 || step > 0;
        if (i < kTiles - kHeldTiles) {
          const std::uint32_t query = query_at(0, tile) + step * 32;
          ptx::multiply_rows(scores_, ptx::further(rows_, query), key, more);
        } else {
          ptx::multiply_rows(scores_, held_[i - (kTiles - kHeldTiles)][step], key, more);
        }
      }
    }
    ptx::commit_products();
    ptx::wait_products(scores_);
    // A warp waits for its own products only, and what follows writes to tiles that others read.
    ptx::meet_at(kGroupOnly + kGroup, kGroupThreads);
    if (partly_seen(pages, page)) {
      const int before = page * kPage;
      if constexpr (kSelected) {
        mask(scores_, {pages.seen_by_all - before, pages.seen_by_all - before});
      } else {
        // Counted here to save registers: such pages are few.
        const Work work = work_at(pages.unit);
        const int limit[2] = {visible(work, 0) - before, visible(work, 1) - before};
        mask(scores_, limit);
      }
    }
  }

  /// Rows of the leaf that one of the thread's two rows sees.
  [[nodiscard]] TRIBUTARY_DEVICE int visible(const Work& work, int r) const {
    const int row = work.first_row + upper_row() + 8 * r;
    return row < work.rows ? visible_rows(*work.task, row / launch_.heads) : 0;
  }
  TRIBUTARY_DEVICE static bool partly_seen(const Pages& pages, int page) {
    return (page + 1) * kPage > pages.seen_by_all;
  }
  /// Whether clear() has to do with a page. Selected rows are seen by all, and arrive with zeros
  /// behind the last one.
  TRIBUTARY_DEVICE static bool unclean(const Pages& pages, int page) {
    return !kSelected && partly_seen(pages, page);
  }
  TRIBUTARY_DEVICE void clear(const Pages& pages, int page, int buffer) const {
    const int before = page * kPage;
    const int rows = work_at(pages.unit).task->rows;
    clear_unseen(shared_, buffer, kGroup, pages.seen_by_all - before, rows - before);
  }

  /// Turns the scores of the own page into weights: in registers for this group, in shared memory
  /// for the other.
  TRIBUTARY_DEVICE void weigh_own(const Pages& pages, SoftmaxState& state, int page) {
    weigh(scores_, scale_, state, factor_);
    round_weights(scores_, weights_);
    store_weights(weights_, tile_at(shared_, kGroup, kRopeTile));
    store_peaks(state, shared_, kGroup);
    if (unclean(pages, page)) clear(pages, page, kGroup);
    ptx::publish_writes();
    ptx::arrive_at(kWeightsReady + kGroup, kComputeThreads);
    if (unclean(pages, page)) ptx::meet_at(kGroupOnly + kGroup, kGroupThreads);
  }

  /// Waits for the other group's weights.
  TRIBUTARY_DEVICE void follow_other(const Pages& pages, SoftmaxState& state, int page) {
    ptx::meet_at(kWeightsReady + kOther, kComputeThreads);
    follow_peaks(state, shared_, kOther, factor_);
    // The other group has waited for these tiles; this one has to wait as well.
    for (int tile = kFirstTile; tile < kFirstTile + kGroupTiles; ++tile) {
      ptx::wait_phase(full_at(shared_, kOther, tile), fills_[kOther] % 2);
    }
    if (unclean(pages, page)) {
      clear(pages, page, kOther);
      ptx::publish_writes();
      ptx::meet_at(kGroupOnly + kGroup, kGroupThreads);
    }
  }

  // output += weights * values, for this group's columns. A step is 16 tokens.
  TRIBUTARY_DEVICE void begin_own_values(float (&output)[128]) {
    ptx::begin_products(output);
    TRIBUTARY_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_columns(output, weights_[step], values_of(kGroup, step));
    }
    ptx::commit_products();
  }
  TRIBUTARY_DEVICE void begin_other_values(float (&output)[128]) {
    ptx::begin_products(output);
    TRIBUTARY_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const std::uint32_t weights =
          tile_at(0, kOther, kRopeTile) + static_cast<std::uint32_t>(step) * 32;
      ptx::multiply_columns(output, ptx::further(rows_, weights), values_of(kOther, step));
    }
    ptx::commit_products();
  }
  [[nodiscard]] TRIBUTARY_DEVICE std::uint64_t values_of(int buffer, int step) const {
    return ptx::further(columns_, tile_at(0, buffer, kFirstTile) +
                                      static_cast<std::uint32_t>(step) * 16 * kRowBytes);
  }

  /// Waits for the products and gives the tiles back. Every warp does this for itself, since it
  /// waits for its own products only.
  TRIBUTARY_DEVICE void end_values(float (&output)[128], int buffer) {
    ptx::wait_products(output);
    const int lane = static_cast<int>(ptx::thread()) % 32;
    if (lane <= kGroupTiles) {
      const int tile = lane < kGroupTiles ? kFirstTile + lane : kRopeTile;
      // The next copy's bytes are announced before it can start, which takes every warp's arrival.
      const bool announces = !kRowByRow && (tile != kRopeTile || buffer == kGroup);
      if (announces && ptx::thread() / 32 == kGroup * kGroupThreads / 32) {
        ptx::expect_bytes(full_at(shared_, buffer, tile), kTileBytes);
      }
      ptx::arrive_in_block(empty_at(shared_, buffer, tile), owner_of(tile, kBlocks));
    }
    ++fills_[buffer];
  }

  /// Stores this group's share of a row's sum where both groups find it.
  TRIBUTARY_DEVICE float store_sum(const SoftmaxState& state, int r) {
    float sum = ptx::add(state.sum[r], ptx::shuffle_xor(state.sum[r], 1));
    sum = ptx::add(sum, ptx::shuffle_xor(sum, 2));
    if (ptx::thread() % 4 == 0) ptx::store_shared(shared_sum(kGroup, r), sum);
    return sum;
  }
  [[nodiscard]] TRIBUTARY_DEVICE std::uint32_t shared_sum(int group, int r) const {
    return shared_ + kSumAt + static_cast<std::uint32_t>(group * kRows + upper_row() + 8 * r) * 4;
  }

  TRIBUTARY_DEVICE void store_states(const Work& work, const SoftmaxState& state,
                                     const float (&sums)[2], const float (&output)[128]) const {
    // Records are a multiple of 16 bytes if the number of heads is a multiple of 4.
    const bool quads =
        reinterpret_cast<std::uintptr_t>(launch_.states) % 16 == 0 && launch_.heads % 4 == 0;
    TRIBUTARY_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float other = ptx::load_shared(shared_sum(kOther, r));
      // Both groups add in the same order.
      const float sum = kGroup == 0 ? ptx::add(sums[r], other) : ptx::add(other, sums[r]);
      const float share = sum == 0 ? 0.0F : ptx::divide(1, sum);
      const int row = work.first_row + upper_row() + 8 * r;
      const bool exists = row < work.rows;
      const RowState to = row_state(launch_, *work.task, exists ? row : 0);
      float* columns = to.o + kGroup * kGroupColumns;
      if (quads) {
        store_quads(columns, exists, r, share, output);
      } else if (exists) {
        store_singly(columns, r, share, output);
      }
      if (kGroup == 0 && exists && first_column() == 0) *to.lse = log_sum(state.peak[r], sum);
    }
  }

  /// Adding 0 turns -0 into +0: a masked page may have done so already, and must not matter.
  TRIBUTARY_DEVICE static float normalised(float value, float share) {
    return ptx::multiply_add(value, share, 0.0F);
  }

  TRIBUTARY_DEVICE static void store_singly(float* row, int r, float share,
                                            const float (&output)[128]) {
    TRIBUTARY_UNROLL
    for (int i = 0; i < 128; i += 4) {
      row[i / 4 * 8 + first_column()] = normalised(output[i + 2 * r], share);
      row[i / 4 * 8 + first_column() + 1] = normalised(output[i + 2 * r + 1], share);
    }
  }

  /// Neighbouring lanes exchange pairs of columns: the even one then stores four columns of the
  /// first eight, the odd one four of the second. So a quarter of a warp's lanes stores 64 bytes of
  /// a row at once. Called by whole warps.
  TRIBUTARY_DEVICE static void store_quads(float* row, bool exists, int r, float share,
                                           const float (&output)[128]) {
    struct alignas(16) Quad {
      float values[4];
    };
    const bool odd = ptx::thread() % 2 != 0;
    float* first = row + (odd ? 8 + first_column() - 2 : first_column());
    TRIBUTARY_UNROLL
    for (int i = 0; i < 128; i += 8) {
      const int low = i + 2 * r;       // of the first eight columns
      const int high = i + 4 + 2 * r;  // of the second
      const float away0 = normalised(odd ? output[low] : output[high], share);
      const float away1 = normalised(odd ? output[low + 1] : output[high + 1], share);
      const float mine0 = normalised(odd ? output[high] : output[low], share);
      const float mine1 = normalised(odd ? output[high + 1] : output[low + 1], share);
      const float theirs0 = ptx::shuffle_xor(away0, 1);
      const float theirs1 = ptx::shuffle_xor(away1, 1);
      const Quad quad =
          odd ? Quad{{theirs0, theirs1, mine0, mine1}} : Quad{{mine0, mine1, theirs0, theirs1}};
      if (exists) *reinterpret_cast<Quad*>(first + i * 2) = quad;
    }
  }

  const AttendLaunch& launch_;
  std::uint32_t shared_;
  std::uint32_t rank_;
  std::uint64_t rows_, columns_;        // operands at the beginning of shared memory
  float scale_;                         // softmax_scale, for powers of two
  std::uint32_t fills_[kBuffers] = {};  // pages that each buffer has held and given back
  std::uint32_t held_[kHeldTiles][kColumns / 16][4];  // queries
  float scores_[32];
  std::uint32_t weights_[kSteps][4];
  float factor_[2];
};

/// The kernel, of kThreads threads; part p of the schedule is cluster p. With kCodes the cache
/// holds rows of codes.
template <int kBlocks, bool kSelected = false, bool kCodes = false>
TRIBUTARY_DEVICE void many_rows(const AttendLaunch& launch,
                                [[maybe_unused]] const CUtensorMap_st* map) {
  constexpr bool kRowByRow = kSelected || kCodes;
  static_assert(kBlocks == 1 || !kRowByRow, "no block copies rows for another");
  const std::uint32_t shared = ptx::tile_memory();
  const std::uint32_t rank = kBlocks == 1 ? 0 : ptx::cluster_rank();
  const int part = static_cast<int>(ptx::block()) / kBlocks;
  const int thread = static_cast<int>(ptx::thread());
  if (thread == 0) {
    if constexpr (!kRowByRow) ptx::prefetch_map(map);
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      for (int tile = 0; tile < kTiles; ++tile) {
        // Both groups read the weights in the RoPE tile; one group is the last reader of any other.
        constexpr std::uint32_t kWarps = kGroupThreads / 32;
        const std::uint32_t readers = (tile == kRopeTile ? kGroups : 1) * kWarps * kBlocks;
        ptx::init_barrier(full_at(shared, buffer, tile), kRowByRow ? kCopyWarps : 1);
        ptx::init_barrier(empty_at(shared, buffer, tile), readers);
      }
    }
    ptx::publish_barriers();
    for (int buffer = 0; !kRowByRow && buffer < kBuffers; ++buffer) {
      for (int tile = 0; tile < kTiles; ++tile) {
        ptx::expect_bytes(full_at(shared, buffer, tile), kTileBytes);
      }
    }
  }
  if constexpr (kBlocks == 1) {
    ptx::sync_block();
  } else {
    ptx::sync_cluster();
  }
  if (thread < kGroupThreads) {
    ptx::take_registers<kComputeRegisters>();
    Group<kBlocks, 0, kSelected, kRowByRow>(launch, shared, rank).run(part);
  } else if (thread < kComputeThreads) {
    ptx::take_registers<kComputeRegisters>();
    Group<kBlocks, 1, kSelected, kRowByRow>(launch, shared, rank).run(part);
  } else {
    ptx::give_registers<kCopyRegisters>();
    if constexpr (kRowByRow) {
      RowLoader<kSelected, kCodes>(launch, shared).run(part);
    } else {
      if (thread == kComputeThreads) load_pages<kBlocks>(launch, map, shared, part, rank);
    }
  }
  // No block exits while another block of the cluster may arrive at its barriers.
  if constexpr (kBlocks > 1) {
    ptx::sync_warp();
    ptx::sync_cluster();
  }
}

}  // namespace tributary::cuda::sm90
