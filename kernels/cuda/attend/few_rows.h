// Attention of few rows over leaves with mma.sync, for sm_80 and later. A block computes a unit of
// up to 64 rows (token, head) in tiles of 16 and walks over the leaf in tiles of 32 latent rows:
// scores, softmax, then the product with the same tile's first 512 columns, which the warps divide
// among them. The weights are rounded to bf16 for that product; their sum is not.
//
// A row's bits depend on its own query and the leaf rows that it sees. Every sum has one order,
// whatever the number of row tiles, warps and stages: scores add up in four chains over the
// columns, weights by 8 columns of a tile. A tile changes nothing for a row that sees none of it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/merge.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/attend/row_stream.h"
#include "kernels/cuda/attend/tile_stream.h"
#include "kernels/cuda/attend/unit.h"

namespace tributary::cuda {

template <int kRowTiles, bool kSelected = false, bool kCodes = false>
class FewRows {
 public:
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kRowTiles * 16;
  static constexpr FewRowsLayout kLayout = few_rows_layout(kRowTiles);

  TRIBUTARY_DEVICE explicit FewRows(const AttendLaunch& launch)
      : launch_(launch),
        shared_(ptx::shared_memory()),
        lane_(static_cast<int>(ptx::thread()) % 32),
        warp_(static_cast<int>(ptx::thread()) / 32) {}

  TRIBUTARY_DEVICE void run() {
    const int first = launch_.part_begin[ptx::block()];
    const int last = launch_.part_begin[ptx::block() + 1];
    Stream stream(launch_, first, last);
    for (int slot = 0; slot < launch_.stages - 1; ++slot) stream.issue(slot_address(slot));
    int slot = 0;
    for (int index = first; index < last; ++index) {
      begin(read_unit(launch_, index));  // and read again at its end: registers are scarce
      for (int tile = 0; tile * kTileRows < seen_last_; ++tile) {
        ptx::wait_copies(launch_.stages - 2);
        if constexpr (kCodes) stream.widen(slot_address(slot));
        ptx::sync_block();  // all see the tile, and all are done with the previous one
        stream.issue(slot_address(slot == 0 ? launch_.stages - 1 : slot - 1));
        score(slot_address(slot), tile * kTileRows);
        ptx::sync_block();
        weigh(slot_address(slot), tile * kTileRows);
        ptx::sync_block();
        accumulate(slot_address(slot));
        slot = slot + 1 == launch_.stages ? 0 : slot + 1;
      }
      finish(read_unit(launch_, index));
      if constexpr (kRows <= kMostMergedRows) {
        if (tree_after(launch_, index) != nullptr) {
          ptx::sync_block();  // all states of these rows are there
          merge_unit(launch_, index, kRows, kWarps);
        }
      }
    }
  }

 private:
  using Stream = std::conditional_t<kSelected || kCodes, RowStream<kThreads, kSelected, kCodes>,
                                    TileStream<kThreads>>;
  // A warp scores one tile of 16 rows against kScoreGroups groups. Groups from kGroups on do not
  // exist: their warps have no work.
  static constexpr int kScoreGroups =
      kRowTiles * kGroups > kWarps ? kRowTiles* kGroups / kWarps : 1;
  static constexpr int kChains = 4;
  // Loads of the next step overlap the products of this one; with 64 rows there are no registers
  // left for that.
  static constexpr int kScoreUnroll = kRowTiles == 4 ? 1 : 3;
  // A warp multiplies all rows with its share of the columns, 16 at a time.
  static constexpr int kColumns = kLatentRank / kWarps;
  static constexpr int kColumnPairs = kColumns / 16;
  static_assert(kChains * 16 * 2 == 128 && kColumns % 16 == 0 && kThreads % 8 == 0);
  static_assert(kRowTiles * kGroups <= kWarps || kRowTiles * kGroups % kWarps == 0);

  struct Fragments {  // of one tile of 16 rows: rows lane / 4 and lane / 4 + 8
    float o[kColumnPairs][2][4];
    float maximum[2];
    float sum[2];
  };

  TRIBUTARY_DEVICE std::uint32_t slot_address(int slot) const {
    return shared_ + kLayout.tiles + static_cast<std::uint32_t>(slot) * kTileBytes;
  }
  TRIBUTARY_DEVICE int score_tile() const { return warp_ % kRowTiles; }
  TRIBUTARY_DEVICE int score_group() const { return warp_ / kRowTiles * kScoreGroups; }
  TRIBUTARY_DEVICE int score_row(int half) const {
    return score_tile() * 16 + half * 8 + lane_ / 4;
  }
  /// [kRows][kGroups] floats.
  TRIBUTARY_DEVICE std::uint32_t statistic(std::uint32_t array, int row, int group) const {
    return shared_ + array + static_cast<std::uint32_t>(row * kGroups + group) * 4;
  }
  /// Rows of weights are 64 bytes: two to a line of banks, permuted like latent_offset.
  TRIBUTARY_DEVICE std::uint32_t weight_chunk(int row, int chunk) const {
    return shared_ + kLayout.weights +
           static_cast<std::uint32_t>(row * kTileRows * 2 + (chunk ^ (row / 2 % 4)) * kChunkBytes);
  }

  TRIBUTARY_DEVICE void begin(const Unit& unit) {
    if constexpr (kSelected) {  // one token
      seen_last_ = selected_part(launch_, unit.task).count;
    } else {
      seen_first_ = visible_rows(unit.task, unit.first_row / launch_.heads);
      seen_last_ = visible_rows(unit.task, (unit.first_row + unit.rows - 1) / launch_.heads);
    }
    TRIBUTARY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = score_row(half);
      if constexpr (kSelected) {
        seen_[half] = row < unit.rows ? seen_last_ : 0;
      } else {
        seen_[half] =
            row < unit.rows ? visible_rows(unit.task, (unit.first_row + row) / launch_.heads) : 0;
      }
      score_maximum_[half] = kNothing;
    }
    TRIBUTARY_UNROLL
    for (int m = 0; m < kRowTiles; ++m) rows_[m] = Fragments{{}, {kNothing, kNothing}, {}};
    if (seen_last_ > 0) load_queries(unit);
  }

  // Other threads see the queries after the next barrier. Nobody reads those of the previous unit
  // any more: its last scores were two barriers ago.
  TRIBUTARY_DEVICE void load_queries(const Unit& unit) const {
    const bool aligned = (reinterpret_cast<std::uintptr_t>(launch_.queries) |
                          static_cast<std::uintptr_t>(launch_.query_stride_bytes)) %
                             kChunkBytes ==
                         0;
    constexpr int kRowChunks = kRowBytes / kChunkBytes;
    for (int i = static_cast<int>(ptx::thread()); i < kRows * kRowChunks; i += kThreads) {
      const int row = i / kRowChunks;
      const int chunk = i - row * kRowChunks;
      ptx::Chunk value{};  // rows past the last are zeros
      if (row < unit.rows) {
        const std::byte* from = row_query(launch_, unit.task, unit.first_row + row, kRowBytes) +
                                static_cast<std::size_t>(chunk) * kChunkBytes;
        value = aligned ? *reinterpret_cast<const ptx::Chunk*>(from) : ptx::load_halves(from);
      }
      ptx::store_shared(shared_ + kLayout.queries + latent_offset(row, chunk), value);
    }
  }

  // The scores of this warp's part of the tile, in scores_, and their maxima by 8 columns.
  TRIBUTARY_DEVICE void score(std::uint32_t tile, int first_column) {
    if (score_group() >= kGroups) return;
    float sum[kScoreGroups][kChains][4] = {};
    const int key_row = score_group() * 8 + lane_ % 8;
    const std::uint32_t queries = shared_ + kLayout.queries;
    const int query_row = score_tile() * 16 + lane_ % 16;
    // Four steps of 16 columns are 128 bytes of a row, whose chunks are permuted among themselves.
    TRIBUTARY_UNROLL_BY(kScoreUnroll)
    for (int group = 0; group < kRowGroups; ++group) {
      TRIBUTARY_UNROLL
      for (int step = 0; step < kChains; step += 2) {
        const int chunk = group * 8 + step * 2;
        std::uint32_t query[2][4];
        ptx::load_matrices(queries + latent_offset(query_row, chunk + lane_ / 16), query[0]);
        ptx::load_matrices(queries + latent_offset(query_row, chunk + 2 + lane_ / 16), query[1]);
        TRIBUTARY_UNROLL
        for (int g = 0; g < kScoreGroups; ++g) {
          std::uint32_t key[4];
          ptx::load_matrices(tile + latent_offset(key_row + g * kGroupRows, chunk + lane_ / 8),
                             key);
          ptx::multiply_add(sum[g][step], query[0], key[0], key[1]);
          ptx::multiply_add(sum[g][step + 1], query[1], key[2], key[3]);
        }
      }
    }
    const float scale = ptx::multiply(launch_.softmax_scale, kLog2E);
    TRIBUTARY_UNROLL
    for (int g = 0; g < kScoreGroups; ++g) {
      float maximum[2] = {kNothing, kNothing};
      TRIBUTARY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int column = first_column + (score_group() + g) * 8 + lane_ % 4 * 2 + i % 2;
        const float total =
            ptx::add(ptx::add(sum[g][0][i], sum[g][1][i]), ptx::add(sum[g][2][i], sum[g][3][i]));
        scores_[g][i] = column < seen_[i / 2] ? ptx::multiply(total, scale) : kNothing;
        maximum[i / 2] = ptx::larger(maximum[i / 2], scores_[g][i]);
      }
      TRIBUTARY_UNROLL
      for (int half = 0; half < 2; ++half) {
        maximum[half] = ptx::larger(maximum[half], ptx::shuffle_xor(maximum[half], 1));
        maximum[half] = ptx::larger(maximum[half], ptx::shuffle_xor(maximum[half], 2));
        if (lane_ % 4 == 0) {
          ptx::store_shared(statistic(kLayout.maxima, score_row(half), score_group() + g),
                            maximum[half]);
        }
      }
    }
  }

  /// The maximum so far with that of the tile.
  TRIBUTARY_DEVICE float raised(float maximum, int row) const {
    const ptx::Chunk tile = ptx::load_shared_chunk(statistic(kLayout.maxima, row, 0));
    static_assert(kGroups == 4);
    TRIBUTARY_UNROLL
    for (int g = 0; g < kGroups; ++g) maximum = ptx::larger(maximum, ptx::float_of(tile.words[g]));
    return maximum;
  }

  // Turns scores into weights relative to the maximum so far, and sums them by 8 columns.
  TRIBUTARY_DEVICE void weigh(std::uint32_t tile, int first_column) {
    // Rows that only some tokens see may hold anything for the others: 0 * NaN is NaN.
    const bool mixed =
        !kSelected && seen_first_ < seen_last_ && first_column + kTileRows > seen_first_;
    if (mixed) clear_not_finite(tile, first_column);
    if (score_group() >= kGroups) return;
    TRIBUTARY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = score_row(half);
      score_maximum_[half] = raised(score_maximum_[half], row);
      const float reference = reference_score(score_maximum_[half]);
      TRIBUTARY_UNROLL
      for (int g = 0; g < kScoreGroups; ++g) {
        const float low = ptx::exp2_fast(ptx::subtract(scores_[g][half * 2], reference));
        const float high = ptx::exp2_fast(ptx::subtract(scores_[g][half * 2 + 1], reference));
        ptx::store_shared(
            weight_chunk(row, score_group() + g) + static_cast<std::uint32_t>(lane_ % 4) * 4,
            ptx::pack_bf16(low, high));
        float sum = ptx::add(low, high);
        sum = ptx::add(sum, ptx::shuffle_xor(sum, 1));
        sum = ptx::add(sum, ptx::shuffle_xor(sum, 2));
        if (lane_ % 4 == 0) {
          ptx::store_shared(statistic(kLayout.sums, row, score_group() + g), sum);
        }
      }
    }
  }

  // Called after the scores: a row that sees such a value has NaN in its weights already.
  TRIBUTARY_DEVICE void clear_not_finite(std::uint32_t tile, int first_column) const {
    const int first = seen_first_ > first_column ? seen_first_ - first_column : 0;
    const int left = seen_last_ - first_column;
    const int last = left < kTileRows ? left : kTileRows;
    constexpr int kValueChunks = kLatentRank * 2 / kChunkBytes;
    for (int i = first * kValueChunks + static_cast<int>(ptx::thread()); i < last * kValueChunks;
         i += kThreads) {
      const std::uint32_t at = tile + latent_offset(i / kValueChunks, i % kValueChunks);
      ptx::Chunk chunk = ptx::load_shared_chunk(at);
      bool changed = false;
      TRIBUTARY_UNROLL
      for (int half = 0; half < 8; ++half) {
        const std::uint32_t exponent = 0x7f80U << (half % 2 * 16);
        if ((chunk.words[half / 2] & exponent) == exponent) {
          chunk.words[half / 2] &= 0xffff0000U >> (half % 2 * 16);
          changed = true;
        }
      }
      if (changed) ptx::store_shared(at, chunk);
    }
  }

  TRIBUTARY_DEVICE void accumulate(std::uint32_t tile) {
    TRIBUTARY_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      TRIBUTARY_UNROLL
      for (int half = 0; half < 2; ++half) rescale(rows_[m], half, m * 16 + half * 8 + lane_ / 4);
    }
    TRIBUTARY_UNROLL
    for (int step = 0; step < kTileRows / 16; ++step) {
      std::uint32_t weights[kRowTiles][4];
      TRIBUTARY_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        ptx::load_matrices(weight_chunk(m * 16 + lane_ % 16, step * 2 + lane_ / 16), weights[m]);
      }
      TRIBUTARY_UNROLL
      for (int pair = 0; pair < kColumnPairs; ++pair) {
        std::uint32_t values[4];
        const int chunk = warp_ * (kColumns / 8) + pair * 2 + lane_ / 16;
        ptx::load_matrices_transposed(tile + latent_offset(step * 16 + lane_ % 16, chunk), values);
        TRIBUTARY_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::multiply_add(rows_[m].o[pair][0], weights[m], values[0], values[1]);
          ptx::multiply_add(rows_[m].o[pair][1], weights[m], values[2], values[3]);
        }
      }
    }
  }

  // Rescales everything so far to the maximum with this tile, and adds the sum of the tile's
  // weights.
  TRIBUTARY_DEVICE void rescale(Fragments& fragments, int half, int row) const {
    const float maximum = raised(fragments.maximum[half], row);
    const float keep =
        ptx::exp2_fast(ptx::subtract(fragments.maximum[half], reference_score(maximum)));
    const ptx::Chunk sums = ptx::load_shared_chunk(statistic(kLayout.sums, row, 0));
    const float sum =
        ptx::add(ptx::add(ptx::float_of(sums.words[0]), ptx::float_of(sums.words[1])),
                 ptx::add(ptx::float_of(sums.words[2]), ptx::float_of(sums.words[3])));
    fragments.maximum[half] = maximum;
    fragments.sum[half] = ptx::multiply_add(fragments.sum[half], keep, sum);
    TRIBUTARY_UNROLL
    for (int pair = 0; pair < kColumnPairs; ++pair) {
      TRIBUTARY_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& o = fragments.o[pair][i / 2][half * 2 + i % 2];
        o = ptx::multiply(o, keep);
      }
    }
  }

  TRIBUTARY_DEVICE void finish(const Unit& unit) const {
    TRIBUTARY_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      TRIBUTARY_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane_ / 4;
        if (row >= unit.rows) continue;
        const RowState state = row_state(launch_, unit.task, unit.first_row + row);
        const float sum = rows_[m].sum[half];
        const float share = sum == 0 ? 0.0F : ptx::divide(1.0F, sum);
        TRIBUTARY_UNROLL
        for (int pair = 0; pair < kColumnPairs; ++pair) {
          TRIBUTARY_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int column = warp_ * kColumns + pair * 16 + i / 2 * 8 + lane_ % 4 * 2 + i % 2;
            state.o[column] = ptx::multiply(rows_[m].o[pair][i / 2][half * 2 + i % 2], share);
          }
        }
        if (warp_ == 0 && lane_ % 4 == 0) {
          *state.lse = log_sum(rows_[m].maximum[half], sum);
        }
      }
    }
  }

  const AttendLaunch& launch_;
  std::uint32_t shared_;
  int lane_;
  int warp_;
  int seen_first_ = 0;  // of the leaf, by the unit's first row
  int seen_last_ = 0;   // and by its last
  // This warp's share of the scores.
  int seen_[2] = {};
  float score_maximum_[2] = {};
  float scores_[kScoreGroups][4] = {};
  // This warp's columns of all rows.
  Fragments rows_[kRowTiles];
};

}  // namespace tributary::cuda
