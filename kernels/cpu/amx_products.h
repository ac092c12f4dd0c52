// The two products of a block, divided into tiles: four sums, two tiles of A, two of B. Two query
// tiles share the loaded data; an odd last one, or the only one, has four tiles of rows or columns
// instead. Either way an element is one chain of products over columns or rows in order.
#pragma once

#include <algorithm>
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

/// Scores of 32 rows and two query tiles from `tile` on, to `scores` and one tile's scores further.
template <typename Tiles>
void score_two(const Unit& unit, const Rows& rows, std::size_t tile, float* scores,
               Weigh<Tiles>& weigh, Feed& feed) {
  const std::byte* query = unit.query_tiles(tile);
  const std::byte* other = unit.query_tiles(tile + 1);
  take_sums<Tiles, 0, 4>(nullptr, true);
  for (std::size_t step = 0; step < unit.steps; ++step) {
    const std::size_t stride = rows.stride(step);
    Tiles::template load<4>(rows.tile(0, step), stride);
    Tiles::template load<6>(query + step * kTileBytes, kTileRowBytes);
    Tiles::template add_dot<0, 4, 6>();
    Tiles::template load<7>(other + step * kTileBytes, kTileRowBytes);
    Tiles::template add_dot<2, 4, 7>();
    Tiles::template load<5>(rows.tile(kTileRows, step), stride);
    Tiles::template add_dot<1, 5, 6>();
    Tiles::template add_dot<3, 5, 7>();
    feed.step();
    weigh.step();
  }
  store_sums<Tiles, 0, 2>(scores);
  store_sums<Tiles, 2, 2>(scores + kBlockTokens * kLanes);
}

/// Scores of the 64 rows of a page and one query tile.
template <typename Tiles>
void score_one(const Unit& unit, const Rows& rows, std::size_t tile, float* scores,
               Weigh<Tiles>& weigh, Feed& feed) {
  const std::byte* query = unit.query_tiles(tile);
  take_sums<Tiles, 0, 4>(nullptr, true);
  for (std::size_t step = 0; step < unit.steps; ++step) {
    const std::size_t stride = rows.stride(step);
    Tiles::template load<6>(query + step * kTileBytes, kTileRowBytes);
    Tiles::template load<4>(rows.tile(0, step), stride);
    Tiles::template add_dot<0, 4, 6>();
    feed.step();
    Tiles::template load<5>(rows.tile(kTileRows, step), stride);
    Tiles::template add_dot<1, 5, 6>();
    feed.step();
    Tiles::template load<4>(rows.tile(2 * kTileRows, step), stride);
    Tiles::template add_dot<2, 4, 6>();
    feed.step();
    Tiles::template load<5>(rows.tile(3 * kTileRows, step), stride);
    Tiles::template add_dot<3, 5, 6>();
    feed.step();
    weigh.step();
  }
  store_sums<Tiles, 0, 4>(scores);
}

/// Copies the columns of `count` rows that fill no tile to unit.tail.
inline void copy_tail(const Unit& unit, const std::byte* rows, std::size_t count, std::byte* tail) {
  const std::size_t whole = unit.args->latent_dim / kTileDepth * kTileRowBytes;
  const std::size_t bytes = unit.args->latent_dim * sizeof(bf16) - whole;
  for (std::size_t row = 0; row < count; ++row) {
    std::memcpy(tail + row * kTileRowBytes, rows + row * unit.row_bytes() + whole, bytes);
  }
}

/// Scores of all query tiles with the `count` rows at `begin`. Those of a query tile become weights
/// while the next ones are computed. Scores of the rows after them, up to a page's end, are
/// meaningless and not used.
template <typename Tiles>
void score_block(const Unit& unit, std::size_t begin, std::size_t count, Weigh<Tiles>& weigh,
                 Feed& feed) {
  const std::size_t whole_steps = unit.args->latent_dim / kTileDepth;
  const auto rows_from = [&](std::size_t row) {
    const std::byte* page = unit.page((begin + row) / kPageTokens);
    return Rows{page + row % kPageTokens * unit.row_bytes(), unit.row_bytes(), whole_steps,
                unit.tail + row * kTileRowBytes};
  };
  if (whole_steps < unit.steps) {
    for (std::size_t row = 0; row < count; row += kPageTokens) {
      copy_tail(unit, rows_from(row).data, std::min<std::size_t>(kPageTokens, count - row),
                unit.tail + row * kTileRowBytes);
    }
  }
  Tiles::fence();
  std::size_t tile = 0;
  for (; tile + 2 <= unit.tiles; tile += 2) {
    for (std::size_t row = 0; row < count; row += kTileDepth) {
      score_two<Tiles>(unit, rows_from(row), tile, unit.scores_of(tile, row), weigh, feed);
    }
    weigh.ready(tile + 2);
  }
  if (tile < unit.tiles) {
    for (std::size_t row = 0; row < count; row += kPageTokens) {
      score_one<Tiles>(unit, rows_from(row), tile, unit.scores_of(tile, row), weigh, feed);
    }
    weigh.ready(unit.tiles);
  }
  Tiles::fence();
}

/// Weighted values of `steps` x 32 rows, added to two query tiles, or stored if `first`: two tiles
/// of columns at `column`, of which each 32 rows lie `stride` bytes after the last.
template <typename Tiles>
void add_two(const Unit& unit, const std::byte* values, std::size_t stride, std::size_t tile,
             std::size_t column, std::size_t steps, bool first, Interleave& side, Feed& feed) {
  const std::byte* mine = unit.weights_of(tile);
  const std::byte* other = unit.weights_of(tile + 1);
  float* sums = unit.output_tile(tile, column);
  float* other_sums = unit.output_tile(tile + 1, column);
  take_sums<Tiles, 0, 2>(sums, first);
  take_sums<Tiles, 2, 2>(other_sums, first);
  for (std::size_t step = 0; step < steps; ++step) {
    Tiles::template load<4>(mine + step * kTileBytes, kTileRowBytes);
    Tiles::template load<6>(values, kTileRowBytes);
    Tiles::template add_dot<0, 4, 6>();
    Tiles::template load<7>(values + kTileBytes, kTileRowBytes);
    Tiles::template add_dot<1, 4, 7>();
    Tiles::template load<5>(other + step * kTileBytes, kTileRowBytes);
    Tiles::template add_dot<2, 5, 6>();
    Tiles::template add_dot<3, 5, 7>();
    values += stride;
    feed.step();
    side.step();
  }
  store_sums<Tiles, 0, 2>(sums);
  store_sums<Tiles, 2, 2>(other_sums);
}

/// The same for one query tile and kColumns tiles of columns, 4 or 2.
template <typename Tiles, int kColumns>
void add_one(const Unit& unit, const std::byte* values, std::size_t stride, std::size_t tile,
             std::size_t column, std::size_t steps, bool first, Interleave& side, Feed& feed) {
  float* sums = unit.output_tile(tile, column);
  take_sums<Tiles, 0, kColumns>(sums, first);
  const std::byte* a = unit.weights_of(tile);
  for (std::size_t step = 0; step < steps; ++step) {
    Tiles::template load<4>(a + step * kTileBytes, kTileRowBytes);
    Tiles::template load<5>(values, kTileRowBytes);
    Tiles::template add_dot<0, 4, 5>();
    feed.step();
    Tiles::template load<6>(values + kTileBytes, kTileRowBytes);
    Tiles::template add_dot<1, 4, 6>();
    feed.step();
    if constexpr (kColumns == 4) {
      Tiles::template load<7>(values + 2 * kTileBytes, kTileRowBytes);
      Tiles::template add_dot<2, 4, 7>();
      feed.step();
      Tiles::template load<5>(values + 3 * kTileBytes, kTileRowBytes);
      Tiles::template add_dot<3, 4, 5>();
      feed.step();
    }
    values += stride;
    side.step();
  }
  store_sums<Tiles, 0, kColumns>(sums);
}

/// Adds the weighted values of the first `seen` rows of the block at `begin` to the query tiles
/// [tile, end). The next columns are interleaved while these are multiplied.
template <typename Tiles>
void add_columns(const Unit& unit, std::size_t begin, std::size_t seen, std::size_t tile,
                 std::size_t end, Feed& feed) {
  const std::size_t steps = ceil_div(seen, kTileDepth);
  const std::size_t vectors = unit.columns / 2;
  // An odd query tile needs four tiles of columns for four sums.
  const std::size_t most = (end - tile) % 2 == 0 ? 1 : kMostColumns / 2;
  const std::size_t products = ceil_div(end - tile, 2) * steps * most;
  Interleave side(unit, begin, seen);
  side.start(0, std::min(most, vectors), unit.values[0], 1);
  std::size_t buffer = 0;
  for (std::size_t vector = 0; vector < vectors; vector += most, buffer = 1 - buffer) {
    const std::size_t width = std::min(most, vectors - vector);
    side.drain();
    if (vector + most < vectors) {
      side.start(vector + most, std::min(most, vectors - vector - most), unit.values[1 - buffer],
                 products);
    }
    const std::size_t stride = 2 * width * kTileBytes;
    const std::byte* values = unit.values[buffer];
    const std::size_t column = 2 * vector;
    Tiles::fence();
    std::size_t at = tile;
    for (; at + 2 <= end; at += 2) {
      for (std::size_t i = 0; i < width; ++i) {
        add_two<Tiles>(unit, values + 2 * i * kTileBytes, stride, at, column + 2 * i, steps,
                       begin == 0, side, feed);
      }
    }
    if (at == end) continue;
    if (width == 2) {
      add_one<Tiles, 4>(unit, values, stride, at, column, steps, begin == 0, side, feed);
    } else {
      add_one<Tiles, 2>(unit, values, stride, at, column, steps, begin == 0, side, feed);
    }
  }
  Tiles::fence();
}

/// Adds the weighted values of the `count` rows at `begin` to all query tiles, to each those that
/// it sees.
template <typename Tiles>
void add_values(const Unit& unit, std::size_t begin, std::size_t count, Feed& feed) {
  for (std::size_t tile = 0; tile < unit.tiles;) {
    const std::size_t seen = unit.seen(tile, begin, count);
    std::size_t end = tile + 1;
    while (end < unit.tiles && unit.seen(end, begin, count) == seen) ++end;
    if (seen > 0) add_columns<Tiles>(unit, begin, seen, tile, end, feed);
    tile = end;
  }
}

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
