// The two products of a block, divided into register tiles.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/base/ceil_div.h"
#include "kernels/cpu/bf16_tiles.h"
#include "kernels/cpu/bf16_unit.h"

TRIBUTARY_BF16_BEGIN
namespace tributary::cpu::bf16_detail {

template <Step kStep, std::size_t kRows, std::size_t kVectors>
void score_rows(ScoreTile& tile, std::size_t rows, Feed& feed) {
  for (std::size_t row = 0; row < rows; row += kRows) {
    tile.lines = feed.take(tile.steps);
    score_tile<kStep, kRows, kVectors>(tile);
    tile.rows += kRows * tile.row_bytes;
    tile.scores += kRows * tile.score_stride;
  }
}

/// `rows`: a multiple of kRowQuantum.
template <Step kStep>
void score_panel(ScoreTile tile, std::size_t rows, std::size_t vectors, Feed& feed) {
  if (vectors == 1) return score_rows<kStep, 16, 1>(tile, rows, feed);
  if (vectors == 2) return score_rows<kStep, 8, 2>(tile, rows, feed);
  if (vectors == 3) return score_rows<kStep, 8, 3>(tile, rows, feed);
  if constexpr (kStep == Step::kOneWord) {
    // Tiles of 6 rows keep the arithmetic busiest; tiles of 4 cover the rest.
    const std::size_t fours = rows % 6 == 2 ? 8 : rows % 6;
    score_rows<kStep, 6, 4>(tile, rows - fours, feed);
    score_rows<kStep, 4, 4>(tile, fours, feed);
  } else {
    score_rows<kStep, 4, 4>(tile, rows, feed);
  }
}

/// Scores of `rows` cache rows of a page.
// NOLINTNEXTLINE(readability-non-const-parameter): scores are written, through the tile.
inline void score_page(const Unit& unit, const std::byte* page, std::size_t rows, float* scores,
                       Feed& feed) {
  const bool one_word = unit.step == Step::kOneWord;
  const auto step = static_cast<std::size_t>(unit.step);
  // With one word per step, part of the query stays in the first-level cache while the page is
  // read. With four, 16 rows of the page stay, and 16 query rows at a time (18 KiB each).
  const std::size_t depth = one_word ? kDepthWords : unit.words;
  const std::size_t group = one_word ? round_up(rows, kRowQuantum) : kRowQuantum;
  const std::size_t columns = one_word ? kLanes : kLanes / 4;
  for (std::size_t row = 0; row < rows; row += group) {
    for (std::size_t vector = 0; vector < unit.query_vectors; vector += kTileVectors) {
      const QueryPanel panel = unit.query_panel(vector);
      for (std::size_t word = 0; word < unit.words; word += depth) {
        const ScoreTile tile{.rows = page + row * unit.args->row_bytes + word * 4,
                             .row_bytes = unit.args->row_bytes,
                             .query = panel.data + word / step * panel.stride(),
                             .query_stride = panel.stride(),
                             .steps = std::min(depth, unit.words - word) / step,
                             .scores = scores + row * unit.stride + vector * columns,
                             .score_stride = unit.stride,
                             .add = word != 0,
                             .lines = {}};
        if (one_word) {
          score_panel<Step::kOneWord>(tile, group, panel.vectors, feed);
        } else {
          score_panel<Step::kFourWords>(tile, group, panel.vectors, feed);
        }
      }
    }
  }
}

/// Query rows of the next tile when `left` remain: 6 keep the arithmetic busiest, 4 nearly as busy.
inline std::size_t value_tile_rows(std::size_t left) {
  if (left >= 6 && left != 8) return 6;
  return left >= 4 ? 4 : left;
}

template <std::size_t kColumnLines>
void value_rows(ValueTile& tile, std::size_t rows, std::size_t steps, Feed& feed) {
  while (rows > 0) {
    const std::size_t count = value_tile_rows(rows);
    tile.lines = feed.take(steps);
    switch (count) {
      case 6:
        value_tile<6, kColumnLines>(tile);
        break;
      case 4:
        value_tile<4, kColumnLines>(tile);
        break;
      case 3:
        value_tile<3, kColumnLines>(tile);
        break;
      case 2:
        value_tile<2, kColumnLines>(tile);
        break;
      default:
        value_tile<1, kColumnLines>(tile);
    }
    rows -= count;
    tile.weights += count;
    tile.output += count * kPanelColumns;
    if (tile.rescale != nullptr) tile.rescale += count;
  }
}

/// Adds the first `seen` rows of a block to query rows [begin, end).
inline void add_values(const Unit& unit, const std::array<const std::byte*, kBlockPages>& pages,
                       std::size_t begin, std::size_t end, std::size_t seen, bool first,
                       Feed& feed) {
  const std::size_t row_bytes = unit.args->row_bytes;
  std::array<RowPairs, kBlockPages + 1> pairs;
  std::size_t groups = 0;
  for (std::size_t i = 0; i * kPageTokens < seen; ++i) {
    const std::size_t rows = std::min<std::size_t>(kPageTokens, seen - i * kPageTokens);
    if (rows >= 2) pairs[groups++] = {pages[i], pages[i] + row_bytes, rows / 2};
    // An odd last row is paired with zeros, not with a row that may hold anything.
    if (rows % 2 != 0) pairs[groups++] = {pages[i] + (rows - 1) * row_bytes, unit.zeros, 1};
  }
  const std::size_t rank = unit.args->kv_lora_rank;
  for (std::size_t column = 0; column < rank; column += kPanelColumns) {
    ValueTile tile{.pairs = pairs.data(),
                   .pair_groups = groups,
                   .row_pair_bytes = 2 * row_bytes,
                   .column_bytes = column * sizeof(bf16),
                   .weights = unit.weights + begin,
                   .weight_stride = unit.stride,
                   .output = unit.output + column * unit.stride + begin * kPanelColumns,
                   .rescale = first ? nullptr : unit.rescale + begin,
                   .lines = {}};
    if (rank - column >= kPanelColumns) {
      value_rows<2>(tile, end - begin, ceil_div(seen, 2), feed);
    } else {
      value_rows<1>(tile, end - begin, ceil_div(seen, 2), feed);
    }
  }
}

}  // namespace tributary::cpu::bf16_detail
TRIBUTARY_BF16_END
