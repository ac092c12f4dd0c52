// Weighted values of few heads, from rows as they are stored. A word of a row is two adjacent
// columns, and a product on tiles adds over both: weights beside zeros give the sums of the even
// columns, zeros beside weights those of the odd ones. Twice the products, but nothing is
// interleaved, which is most of the work where one query tile multiplies what was interleaved. Zero
// times an infinity is NaN: a value that is not finite also reaches the column beside it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "core/base/ceil_div.h"
#include "kernels/cpu/amx_unit.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu::amx {

/// Where each 16 rows of a block begin.
using DirectRows = std::array<const std::byte*, kDirectSteps>;

/// Adds kPairs x 32 columns from column 32 * `pair` on to a query tile, or stores them if `first`.
template <typename Tiles, int kPairs>
void add_direct_columns(const Unit& unit, std::size_t tile, std::size_t pair,
                        const DirectRows& rows, std::size_t steps, bool first, Feed& feed) {
  float* sums = unit.output_tile(tile, 2 * pair);
  take_sums<Tiles, 0, 2 * kPairs>(sums, first);
  const std::byte* weights = unit.weights_of(tile);
  for (std::size_t step = 0; step < steps; ++step) {
    const std::byte* values = rows[step] + pair * kTileRowBytes;
    Tiles::template load<6>(values, unit.row_bytes());
    Tiles::template load<4>(weights, kTileRowBytes);
    Tiles::template add_dot<0, 4, 6>();
    feed.step();
    Tiles::template load<5>(weights + kTileBytes, kTileRowBytes);
    Tiles::template add_dot<1, 5, 6>();
    feed.step();
    if constexpr (kPairs == 2) {
      Tiles::template load<7>(values + kTileRowBytes, unit.row_bytes());
      Tiles::template add_dot<2, 4, 7>();
      feed.step();
      Tiles::template add_dot<3, 5, 7>();
      feed.step();
    }
    weights += 2 * kTileBytes;
  }
  store_sums<Tiles, 0, 2 * kPairs>(sums);
}

/// Adds the weighted values of the `count` rows at `begin` to all query tiles, to each those that
/// it sees.
template <typename Tiles>
void add_direct(const Unit& unit, std::size_t begin, std::size_t count, Feed& feed) {
  const std::size_t pairs = unit.columns / 2;
  for (std::size_t tile = 0; tile < unit.tiles; ++tile) {
    const std::size_t seen = unit.seen(tile, begin, count);
    if (seen == 0) continue;
    const std::size_t steps = ceil_div(seen, kTileRows);
    DirectRows rows{};
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t at = begin + step * kTileRows;
      rows[step] = unit.page(at / kPageTokens) + at % kPageTokens * unit.row_bytes();
    }
    if (const std::size_t left = seen % kTileRows; left != 0) {
      // Rows that are not seen may hold anything, and 0 x NaN is NaN.
      std::memcpy(unit.edge, rows[steps - 1], left * unit.row_bytes());
      std::memset(unit.edge + left * unit.row_bytes(), 0, (kTileRows - left) * unit.row_bytes());
      rows[steps - 1] = unit.edge;
    }
    Tiles::fence();
    std::size_t pair = 0;
    for (; pair + 2 <= pairs; pair += 2) {
      add_direct_columns<Tiles, 2>(unit, tile, pair, rows, steps, begin == 0, feed);
    }
    if (pair < pairs) {
      add_direct_columns<Tiles, 1>(unit, tile, pair, rows, steps, begin == 0, feed);
    }
    Tiles::fence();
  }
}

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
