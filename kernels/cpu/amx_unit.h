// Shared by the parts of the decode attention on tiles: the sizes of its blocks, a unit of work
// with its memory, and the cache lines that are prefetched while it computes.
//
// A query tile is up to 16 heads of one token, so that all of its query rows see the same rows of
// the cache: nothing that a row of a tile may not see ever meets the tile.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/base/ceil_div.h"
#include "core/interface/visible_rows.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/kernel_table.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu::amx {

/// Cache rows of a block: two pages. The weighted sums pass through memory once a block.
inline constexpr std::size_t kBlockTokens = std::size_t{2} * kPageTokens;
inline constexpr std::size_t kBlockPages = kBlockTokens / kPageTokens;
/// Products of depth 32 that a block's values take.
inline constexpr std::size_t kBlockSteps = kBlockTokens / kTileDepth;
/// Steps of 16 rows that they take where they are multiplied as they are stored.
inline constexpr std::size_t kDirectSteps = kBlockTokens / kTileRows;
/// Tiles of columns that are multiplied in turn, at most.
inline constexpr std::size_t kMostColumns = 4;
/// Query rows of a unit: all 128 heads of DeepSeek, so that values are interleaved once for all.
inline constexpr std::size_t kUnitRows = 128;
/// Query tiles of a unit: with several tokens each has at least one of its own.
inline constexpr std::size_t kMostTiles = 16;
static_assert(kMostTiles * kTileRows >= kUnitRows && kMostTiles >= kMaxStepTokens);
inline constexpr std::size_t kLineBytes = 64;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// One unit of work, and its part of the thread's scratch memory. In memory a tile is 1 KiB, its
/// rows one after the other.
struct Unit {
  const LeafKernelArgs* args = nullptr;
  std::size_t tokens = 0;
  std::size_t heads = 0;        // of the unit
  std::size_t token_tiles = 0;  // query tiles of a token
  std::size_t tiles = 0;        // query tiles
  std::size_t steps = 0;        // products of depth 32 of a score, the last may be in part
  std::size_t columns = 0;      // tiles of 16 columns of the values
  bool direct = false;          // values are multiplied as they are stored (amx_direct.h)
  std::byte* query = nullptr;   // [tiles][steps] tiles of [16 pairs of columns][16 query rows]
  float* scores = nullptr;      // [tiles][kBlockTokens][16 query rows]
  // [tiles][kBlockSteps] tiles of [16 query rows][32 rows]. Direct: [tiles][kDirectSteps][2] tiles
  // of [16 query rows][16 rows, each beside a zero], weights first, then zeros first.
  std::byte* weights = nullptr;
  // [kBlockSteps][up to kMostColumns] tiles of [16 pairs][16 columns]: columns of the values that
  // are multiplied, and the next ones.
  std::array<std::byte*, 2> values{};
  float* output = nullptr;  // [tiles][columns][16 query rows][16 columns]
  float* max = nullptr;     // [tiles][16], as the two below; of score * log2(e)
  float* sum = nullptr;
  float* rescale = nullptr;
  std::byte* edge = nullptr;         // [16][row]: rows of a direct step in part, then zeros
  std::byte* tail = nullptr;         // [kBlockTokens][32]: the last columns of a block, then zeros
  const std::byte* zeros = nullptr;  // a row
  std::array<std::int32_t, kMostTiles> visible{};  // rows of the leaf, by query tile

  [[nodiscard]] std::byte* query_tiles(std::size_t tile) const {
    return query + tile * steps * kTileBytes;
  }
  [[nodiscard]] std::size_t weight_tiles() const { return direct ? 2 * kDirectSteps : kBlockSteps; }
  [[nodiscard]] std::byte* weights_of(std::size_t tile) const {
    return weights + tile * weight_tiles() * kTileBytes;
  }
  [[nodiscard]] float* scores_of(std::size_t tile, std::size_t row) const {
    return scores + (tile * kBlockTokens + row) * kLanes;
  }
  [[nodiscard]] float* output_tile(std::size_t tile, std::size_t column) const {
    return output + (tile * columns + column) * kTileRows * kLanes;
  }
  [[nodiscard]] std::size_t row_bytes() const { return args->row_bytes; }
  [[nodiscard]] const std::byte* page(std::size_t index) const {
    return args->layer + static_cast<std::size_t>(args->pages[index]) * args->page_bytes;
  }
  /// Rows of the block [begin, begin + count) that a query tile sees: the first ones.
  [[nodiscard]] std::size_t seen(std::size_t tile, std::size_t begin, std::size_t count) const {
    const auto left = visible[tile] - static_cast<std::int32_t>(begin);
    return static_cast<std::size_t>(std::clamp(left, 0, static_cast<std::int32_t>(count)));
  }
};

/// Takes the parts of a unit from scratch memory, or only measures them.
struct Carve {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;

  std::byte* take(std::size_t count) {
    std::byte* part = memory == nullptr ? nullptr : memory + bytes;
    bytes += round_up(count, kLineBytes);
    return part;
  }
  float* take_floats(std::size_t count) { return reinterpret_cast<float*>(take(count * 4)); }
};

/// Bytes of scratch that a unit of `unit.tiles` takes; fills the pointers if there is memory.
inline std::size_t place(Unit& unit, std::byte* memory, std::size_t latent_dim) {
  Carve carve{.memory = memory};
  unit.query = carve.take(unit.tiles * unit.steps * kTileBytes);
  unit.scores = carve.take_floats(unit.tiles * kBlockTokens * kLanes);
  unit.weights = carve.take(unit.tiles * unit.weight_tiles() * kTileBytes);
  for (std::byte*& values : unit.values) {
    values = carve.take(kBlockSteps * kMostColumns * kTileBytes);
  }
  unit.output = carve.take_floats(unit.tiles * unit.columns * kTileRows * kLanes);
  unit.max = carve.take_floats(unit.tiles * kLanes);
  unit.sum = carve.take_floats(unit.tiles * kLanes);
  unit.rescale = carve.take_floats(unit.tiles * kLanes);
  unit.edge = carve.take(kTileRows * latent_dim * sizeof(bf16));
  unit.tail = carve.take(kBlockTokens * kTileRowBytes);
  std::byte* zeros = carve.take(latent_dim * sizeof(bf16));
  if (memory != nullptr) {
    std::memset(unit.tail, 0, kBlockTokens * kTileRowBytes);
    std::memset(zeros, 0, latent_dim * sizeof(bf16));
  }
  unit.zeros = zeros;
  return carve.bytes;
}

inline Unit make_unit(const LeafKernelArgs& args, std::byte* scratch) {
  Unit unit{.args = &args};
  unit.tokens = static_cast<std::size_t>(args.task->tokens);
  unit.heads = args.head_end - args.head_begin;
  unit.token_tiles = ceil_div(unit.heads, kTileRows);
  unit.tiles = unit.tokens * unit.token_tiles;
  unit.steps = ceil_div(args.latent_dim, kTileDepth);
  unit.columns = args.kv_lora_rank / kLanes;
  unit.direct = args.heads <= kFewHeads;
  static_cast<void>(place(unit, scratch, args.latent_dim));
  for (std::size_t tile = 0; tile < unit.tiles; ++tile) {
    const auto token = static_cast<std::int32_t>(tile / unit.token_tiles);
    unit.visible[tile] = visible_rows(*args.task, token);
  }
  return unit;
}

/// The lines to prefetch, or the rows to gather, while a block is computed, some at each step of
/// its tile loops.
struct Feed {
  std::array<const std::byte*, kBlockPages> data{};
  std::array<std::size_t, kBlockPages> lines{};
  std::size_t page = 0, line = 0;
  std::size_t per_step = 0;
  RowGather* gather = nullptr;  // does more than prefetch, and all of it, if there is one

  [[gnu::always_inline]] void step() {
    if (gather != nullptr) gather->request(gather->advance(1));
    for (std::size_t i = 0; i < per_step && page < kBlockPages; ++i) {
      if (line < lines[page]) {
        _mm_prefetch(reinterpret_cast<const char*>(data[page]) + line * kLineBytes, _MM_HINT_T1);
        ++line;
      } else {
        line = 0;
        ++page;
      }
    }
  }
};

/// How often the loops over the tiles of a block call Feed::step(): after each product where there
/// is a single query tile, whose lines are the most for its products; otherwise after each four.
inline std::size_t feed_steps(const Unit& unit) {
  const std::size_t pairs = unit.tiles / 2;
  const std::size_t single = unit.tiles % 2;
  const std::size_t scores = (pairs + 2 * single) * kBlockSteps * unit.steps;
  if (unit.direct) return scores + unit.tiles * kDirectSteps * unit.columns;
  return scores + (pairs + 2 * single) * kBlockSteps * unit.columns / 2;
}

/// The lines of the block after the one at `begin`, of this unit or of the next one; they go into
/// the second-level cache. Or the rows of that block to gather; those of this block are there.
inline Feed next_block(const Unit& unit, std::size_t begin, std::size_t seen) {
  const LeafKernelArgs& args = *unit.args;
  const std::size_t steps = feed_steps(unit);
  Feed feed;
  if (args.gather != nullptr) {
    args.gather->begin_block(begin, steps);
    feed.gather = args.gather;
    return feed;
  }
  std::size_t lines = 0;
  for (std::size_t i = 0; i < kBlockPages; ++i) {
    const std::size_t row = begin + kBlockTokens + i * kPageTokens;
    if (row < seen) {
      feed.data[i] = unit.page(row / kPageTokens);
      feed.lines[i] =
          ceil_div(std::min<std::size_t>(kPageTokens, seen - row) * args.row_bytes, kLineBytes);
    } else if (begin + kBlockTokens >= seen && i < args.next_pages.size() &&
               args.next_pages[i] != nullptr) {
      feed.data[i] = args.next_pages[i];
      feed.lines[i] = kPageTokens * args.row_bytes / kLineBytes;
    }
    lines += feed.lines[i];
  }
  feed.per_step = ceil_div(lines, steps);
  return feed;
}

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
