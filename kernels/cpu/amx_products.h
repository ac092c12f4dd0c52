// The two products of a block, divided into tiles: four sums, two tiles of A, two of B. Two query
// tiles share the loaded data; an odd last one, or the only one, has four tiles of rows or columns
// instead. Either way an element is one chain of products over columns or rows in order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/base/ceil_div.h"
#include "kernels/cpu/amx_side.h"
#include "kernels/cpu/amx_unit.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu::amx {

/// Rows of the cache as tiles of A: as stored, except for the last columns of a row that 32 does
/// not divide, which are copied and padded with zeros.
struct Rows {
  const std::byte* data = nullptr;
  std::size_t row_bytes = 0;
  std::size_t whole_steps = 0;
  const std::byte* tail = nullptr;

  /// 16 rows from `row` on, columns of product `step`.
  [[nodiscard]] const std::byte* tile(std::size_t row, std::size_t step) const {
    return step < whole_steps ? data + row * row_bytes + step * kTileRowBytes
                              : tail + row * kTileRowBytes;
  }
  [[nodiscard]] std::size_t stride(std::size_t step) const {
    return step < whole_steps ? row_bytes : kTileRowBytes;
  }
};

/// Columns of a score in products of depth 32: the chain goes on where `begin` is not its start.
struct Steps {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Scores of 32 rows and two query tiles from `tile` on, to `scores` and one tile's scores further.
template <typename Tiles, typename Side>
void score_two(const Unit& unit, const Rows& rows, Steps steps, std::size_t tile, float* scores,
               Side& side, Feed& feed) {
  constexpr std::size_t kTileFloats = kTileRows * kLanes;
  float* second = scores + kBlockTokens * kLanes;
  const std::byte* query = unit.query_tiles(tile);
  const std::byte* other = unit.query_tiles(tile + 1);
  if (steps.begin == 0) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
  } else {
    Tiles::template load<0>(scores, kTileRowBytes);
    Tiles::template load<1>(second, kTileRowBytes);
    Tiles::template load<2>(scores + kTileFloats, kTileRowBytes);
    Tiles::template load<3>(second + kTileFloats, kTileRowBytes);
  }
  for (std::size_t step = steps.begin; step < steps.end; ++step) {
    const std::size_t stride = rows.stride(step);
    Tiles::template load<4>(rows.tile(0, step), stride);
    Tiles::template load<6>(query + step * kTileBytes, kTileRowBytes);
    Tiles::template add_dot<0, 4, 6>();
    Tiles::template load<7>(other + step * kTileBytes, kTileRowBytes);
    Tiles::template add_dot<1, 4, 7>();
    Tiles::template load<5>(rows.tile(kTileRows, step), stride);
    Tiles::template add_dot<2, 5, 6>();
    Tiles::template add_dot<3, 5, 7>();
    feed.step();
    side.step();
  }
  Tiles::template store<0>(scores, kTileRowBytes);
  Tiles::template store<1>(second, kTileRowBytes);
  Tiles::template store<2>(scores + kTileFloats, kTileRowBytes);
  Tiles::template store<3>(second + kTileFloats, kTileRowBytes);
}

/// Scores of the 64 rows of a page and one query tile.
template <typename Tiles, typename Side>
void score_one(const Unit& unit, const Rows& rows, std::size_t tile, float* scores, Side& side,
               Feed& feed) {
  const std::byte* query = unit.query_tiles(tile);
  Tiles::template zero<0>();
  Tiles::template zero<1>();
  Tiles::template zero<2>();
  Tiles::template zero<3>();
  for (std::size_t step = 0; step < unit.steps; ++step) {
    const std::size_t stride = rows.stride(step);
    Tiles::template load<6>(query + step * kTileBytes, kTileRowBytes);
    Tiles::template load<4>(rows.tile(0, step), stride);
    Tiles::template add_dot<0, 4, 6>();
    Tiles::template load<5>(rows.tile(kTileRows, step), stride);
    Tiles::template add_dot<1, 5, 6>();
    Tiles::template load<4>(rows.tile(2 * kTileRows, step), stride);
    Tiles::template add_dot<2, 4, 6>();
    Tiles::template load<5>(rows.tile(3 * kTileRows, step), stride);
    Tiles::template add_dot<3, 5, 6>();
    feed.step();
    side.step();
  }
  constexpr std::size_t kTileFloats = kTileRows * kLanes;
  Tiles::template store<0>(scores, kTileRowBytes);
  Tiles::template store<1>(scores + kTileFloats, kTileRowBytes);
  Tiles::template store<2>(scores + 2 * kTileFloats, kTileRowBytes);
  Tiles::template store<3>(scores + 3 * kTileFloats, kTileRowBytes);
}

/// Copies the columns of `count` rows that fill no tile to unit.tail.
inline void copy_tail(const Unit& unit, const std::byte* rows, std::size_t count, std::byte* tail) {
  const std::size_t whole = unit.args->latent_dim / kTileDepth * kTileRowBytes;
  const std::size_t bytes = unit.args->latent_dim * sizeof(bf16) - whole;
  for (std::size_t row = 0; row < count; ++row) {
    std::memcpy(tail + row * kTileRowBytes, rows + row * unit.row_bytes() + whole, bytes);
  }
}

/// Scores of all query tiles with the `count` rows at `begin`, and their values interleaved.
/// Scores of the rows after them, up to a page's end, are meaningless and not used.
template <typename Tiles>
void score_block(const Unit& unit, std::size_t begin, std::size_t count, std::byte* values,
                 Feed& feed) {
  const std::size_t whole_steps = unit.args->latent_dim / kTileDepth;
  const std::size_t in_pairs = unit.tiles / 2 * 2;
  Idle idle;
  for (std::size_t at = 0; at < count; at += kPageTokens) {
    const std::byte* page = unit.page((begin + at) / kPageTokens);
    const std::size_t page_rows = std::min<std::size_t>(kPageTokens, count - at);
    std::byte* tail = unit.tail + at * kTileRowBytes;
    if (whole_steps < unit.steps) copy_tail(unit, page, page_rows, tail);
    const auto rows_from = [&](std::size_t row) {
      return Rows{page + row * unit.row_bytes(), unit.row_bytes(), whole_steps,
                  tail + row * kTileRowBytes};
    };
    const auto values_of = [&](std::size_t row) {
      return values + (at + row) / kTileDepth * unit.columns * kTileBytes;
    };
    Tiles::fence();
    if (in_pairs == 0) {
      Interleave side(unit, page, page_rows, values_of(0), unit.steps);
      score_one<Tiles>(unit, rows_from(0), 0, unit.scores_of(0, at), side, feed);
      side.drain();
      continue;
    }
    // All query tiles read 32 rows, half of their columns at a time: 18 KiB of DeepSeek's stay in
    // the first-level cache beside a pair of query tiles, 36 would not.
    const std::size_t middle = in_pairs > 2 ? ceil_div(unit.steps, std::size_t{2}) : unit.steps;
    for (std::size_t row = 0; row < page_rows; row += kTileDepth) {
      const std::size_t rows = std::min(kTileDepth, page_rows - row);
      Interleave side(unit, page + row * unit.row_bytes(), rows, values_of(row),
                      in_pairs / 2 * unit.steps);
      for (const Steps steps : {Steps{0, middle}, Steps{middle, unit.steps}}) {
        if (steps.begin == steps.end) continue;
        for (std::size_t tile = 0; tile < in_pairs; tile += 2) {
          score_two<Tiles>(unit, rows_from(row), steps, tile, unit.scores_of(tile, at + row), side,
                           feed);
        }
      }
      side.drain();
    }
    if (in_pairs < unit.tiles) {
      score_one<Tiles>(unit, rows_from(0), in_pairs, unit.scores_of(in_pairs, at), idle, feed);
    }
  }
  Tiles::fence();
}

/// Weighted values of `steps` x 32 rows, added to two query tiles, or stored if `first`.
template <typename Tiles, typename Side>
void add_two(const Unit& unit, const std::byte* weights, const std::byte* values, std::size_t tile,
             std::size_t steps, bool first, Side& side, Feed& feed) {
  const std::byte* mine = weights + tile * kBlockSteps * kTileBytes;
  const std::byte* other = mine + kBlockSteps * kTileBytes;
  for (std::size_t column = 0; column < unit.columns; column += 2) {
    const std::array<float*, 4> sums{
        unit.output_tile(tile, column), unit.output_tile(tile, column + 1),
        unit.output_tile(tile + 1, column), unit.output_tile(tile + 1, column + 1)};
    if (first) {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    } else {
      Tiles::template load<0>(sums[0], kTileRowBytes);
      Tiles::template load<1>(sums[1], kTileRowBytes);
      Tiles::template load<2>(sums[2], kTileRowBytes);
      Tiles::template load<3>(sums[3], kTileRowBytes);
    }
    const std::byte* b = values + column * kTileBytes;
    for (std::size_t step = 0; step < steps; ++step) {
      Tiles::template load<4>(mine + step * kTileBytes, kTileRowBytes);
      Tiles::template load<6>(b, kTileRowBytes);
      Tiles::template add_dot<0, 4, 6>();
      Tiles::template load<7>(b + kTileBytes, kTileRowBytes);
      Tiles::template add_dot<1, 4, 7>();
      Tiles::template load<5>(other + step * kTileBytes, kTileRowBytes);
      Tiles::template add_dot<2, 5, 6>();
      Tiles::template add_dot<3, 5, 7>();
      b += unit.columns * kTileBytes;
      feed.step();
      side.step();
    }
    Tiles::template store<0>(sums[0], kTileRowBytes);
    Tiles::template store<1>(sums[1], kTileRowBytes);
    Tiles::template store<2>(sums[2], kTileRowBytes);
    Tiles::template store<3>(sums[3], kTileRowBytes);
  }
}

/// The same for one query tile: kColumns tiles of columns at `column`, 4 or 2.
template <typename Tiles, std::size_t kColumns, typename Side>
void add_columns(const Unit& unit, const std::byte* weights, const std::byte* values,
                 std::size_t tile, std::size_t column, std::size_t steps, bool first, Side& side,
                 Feed& feed) {
  float* sums = unit.output_tile(tile, column);
  constexpr std::size_t kTileFloats = kTileRows * kLanes;
  if (first) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if constexpr (kColumns == 4) Tiles::template zero<2>();
    if constexpr (kColumns == 4) Tiles::template zero<3>();
  } else {
    Tiles::template load<0>(sums, kTileRowBytes);
    Tiles::template load<1>(sums + kTileFloats, kTileRowBytes);
    if constexpr (kColumns == 4) Tiles::template load<2>(sums + 2 * kTileFloats, kTileRowBytes);
    if constexpr (kColumns == 4) Tiles::template load<3>(sums + 3 * kTileFloats, kTileRowBytes);
  }
  const std::byte* a = weights + tile * kBlockSteps * kTileBytes;
  const std::byte* b = values + column * kTileBytes;
  for (std::size_t step = 0; step < steps; ++step) {
    Tiles::template load<4>(a + step * kTileBytes, kTileRowBytes);
    Tiles::template load<5>(b, kTileRowBytes);
    Tiles::template add_dot<0, 4, 5>();
    Tiles::template load<6>(b + kTileBytes, kTileRowBytes);
    Tiles::template add_dot<1, 4, 6>();
    if constexpr (kColumns == 4) {
      Tiles::template load<7>(b + 2 * kTileBytes, kTileRowBytes);
      Tiles::template add_dot<2, 4, 7>();
      Tiles::template load<5>(b + 3 * kTileBytes, kTileRowBytes);
      Tiles::template add_dot<3, 4, 5>();
    }
    b += unit.columns * kTileBytes;
    feed.step();
    side.step();
  }
  Tiles::template store<0>(sums, kTileRowBytes);
  Tiles::template store<1>(sums + kTileFloats, kTileRowBytes);
  if constexpr (kColumns == 4) Tiles::template store<2>(sums + 2 * kTileFloats, kTileRowBytes);
  if constexpr (kColumns == 4) Tiles::template store<3>(sums + 3 * kTileFloats, kTileRowBytes);
}

template <typename Tiles, typename Side>
void add_one(const Unit& unit, const std::byte* weights, const std::byte* values, std::size_t tile,
             std::size_t steps, bool first, Side& side, Feed& feed) {
  for (std::size_t column = 0; column < unit.columns; column += 4) {
    if (unit.columns - column >= 4) {
      add_columns<Tiles, 4>(unit, weights, values, tile, column, steps, first, side, feed);
    } else {
      add_columns<Tiles, 2>(unit, weights, values, tile, column, steps, first, side, feed);
    }
  }
}

/// Zeroes the interleaved rows [row, the next multiple of 32) of a block.
inline void hide_rows(const Unit& unit, std::byte* values, std::size_t row) {
  const std::size_t end = round_up(row, kTileDepth);
  std::byte* step = values + row / kTileDepth * unit.columns * kTileBytes;
  for (; row < end; ++row) {
    const std::size_t pair = row % kTileDepth / 2;
    const Words keep = _mm512_set1_epi32(row % 2 == 0 ? 0 : 0xffff);
    for (std::size_t column = 0; column < unit.columns; ++column) {
      std::byte* at = step + column * kTileBytes + pair * kTileRowBytes;
      _mm512_store_si512(at, _mm512_and_si512(keep, _mm512_load_si512(at)));
    }
  }
}

/// Adds the weighted values of the `count` rows at `begin` to all query tiles, to each those that
/// it sees. `values` lose the rows that not every query tile sees.
template <typename Tiles, typename Side>
void add_values(const Unit& unit, std::size_t begin, std::size_t count, const std::byte* weights,
                std::byte* values, Side& side, Feed& feed) {
  // Later tokens see more rows: from the last query tile to the first, rows hidden from one run of
  // tiles are hidden from all that follow.
  for (std::size_t end = unit.tiles; end > 0;) {
    const std::size_t seen = unit.seen(end - 1, begin, count);
    std::size_t run = end - 1;
    while (run > 0 && unit.seen(run - 1, begin, count) == seen) --run;
    if (seen == 0) break;
    if (seen < count && seen % kTileDepth != 0) hide_rows(unit, values, seen);
    const std::size_t steps = ceil_div(seen, kTileDepth);
    Tiles::fence();
    std::size_t tile = run;
    for (; tile + 2 <= end; tile += 2) {
      add_two<Tiles>(unit, weights, values, tile, steps, begin == 0, side, feed);
    }
    if (tile < end) add_one<Tiles>(unit, weights, values, tile, steps, begin == 0, side, feed);
    Tiles::fence();
    end = run;
  }
}

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
