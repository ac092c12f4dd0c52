// Shared by the parts of kernels/cpu/bf16_attend.cc: the sizes of its blocks, a unit of work with
// its memory, and the stream of cache lines that are prefetched while it computes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/base/ceil_div.h"
#include "kernels/cpu/bf16_math.h"
#include "kernels/cpu/bf16_tiles.h"
#include "kernels/cpu/kernel_table.h"

TRIBUTARY_BF16_BEGIN
namespace tributary::cpu::bf16_detail {

// Query rows of a unit of work, at most. Queries, sums and scores of 64 rows (74 + 131 + 32 KiB on
// 512 + 64) leave room in a second-level cache of 1 MiB for a block of cache rows and the next one
// (147 KiB each). Does not affect the bits.
inline constexpr std::size_t kMaxPairRows = 64;
// The same for units that copy the rows that they read: 128 heads copy them once, and are 6% faster
// at 128k rows. Where nothing is copied they are 1% slower.
inline constexpr std::size_t kMaxCopyingPairRows = 128;
// The least: the query rows of a vector, or half as many with few heads, where a vector holds four
// rows.
inline constexpr std::size_t kPairRows = 16;
inline constexpr std::size_t kFewPairRows = 8;
// Cache rows of a block: two pages. The weighted sums pass through memory once per block, half as
// often as with one page. 128 bytes of each row, which all query rows read, fill a third of the
// first-level cache (16 of 48 KiB) beside the block's weights.
inline constexpr std::size_t kBlockTokens = std::size_t{2} * kPageTokens;
inline constexpr std::size_t kBlockPages = kBlockTokens / kPageTokens;
// Words (pairs of columns) of the query in one pass of the first product: for 64 query rows they
// are 36 KiB and stay in the first-level cache while the cache rows are read.
inline constexpr std::size_t kDepthWords = 144;
// Vectors of query rows in a register tile: 4 x 6 sums of 32 registers.
inline constexpr std::size_t kTileVectors = 4;
// Cache rows of a tile divide this.
inline constexpr std::size_t kRowQuantum = 16;
inline constexpr std::size_t kLineBytes = 64;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// How the columns of the first product are read. It decides the bits, so it depends on the shape
/// alone. A token of up to kFewHeads heads has no more query rows than a vector has lanes; a vector
/// then takes four columns of four rows.
inline Step score_step(std::size_t heads, std::size_t words) {
  return heads <= kFewHeads && words % 4 == 0 ? Step::kFourWords : Step::kOneWord;
}

/// Up to kTileVectors vectors of the packed query, of every step: [step][vectors][kLanes].
struct QueryPanel {
  std::uint32_t* data = nullptr;
  std::size_t vectors = 0;

  [[nodiscard]] std::size_t stride() const { return vectors * kLanes; }
};

/// One unit of work, and its part of the thread's scratch memory.
struct Unit {
  const LeafKernelArgs* args = nullptr;
  Step step = Step::kOneWord;
  std::size_t words = 0;  // of a row
  std::size_t steps = 0;  // of the first product
  std::size_t tokens = 0;
  std::size_t heads = 0;   // of the unit: query rows of a token
  std::size_t rows = 0;    // query rows
  std::size_t stride = 0;  // query rows, whole vectors
  std::size_t query_vectors = 0;
  std::uint32_t* query = nullptr;    // panels, one after the other
  float* scores = nullptr;           // [kBlockTokens][stride]
  std::uint32_t* weights = nullptr;  // [kBlockTokens / 2][stride]
  float* output = nullptr;           // [panel][stride][kPanelColumns]
  float* max = nullptr;              // [stride], as the three below
  float* sum = nullptr;
  float* rescale = nullptr;
  std::int32_t* visible = nullptr;
  const std::byte* zeros = nullptr;  // a row

  /// The panel that begins at `vector`, a multiple of kTileVectors. A panel is read from front to
  /// back: with a power of two between its steps it would map to a few sets of the cache.
  [[nodiscard]] QueryPanel query_panel(std::size_t vector) const {
    return {query + vector * kLanes * steps, std::min(kTileVectors, query_vectors - vector)};
  }
};

/// The lines to prefetch, or the rows to gather, while a block is computed, spread evenly over the
/// steps of its tiles.
struct Feed {
  std::array<const std::byte*, kBlockPages> begin{};
  std::array<const std::byte*, kBlockPages> data{};
  std::array<std::size_t, kBlockPages> lines{};
  std::size_t page = 0;
  std::size_t lines_per_1024_steps = 0;
  std::size_t due = 0;  // 1024ths of a line
  PrefetchInto into = PrefetchInto::kFirstLevel;
  RowGather* gather = nullptr;  // does more than prefetch, and all of it, if there is one

  Lines take(std::size_t steps) {
    if (gather != nullptr) {
      const RowLines row = gather->advance(steps);
      const std::size_t each = ceil_div(row.count, steps);
      return {row.data, each == 0 ? 0 : ceil_div(row.count, each), each, row.data, into};
    }
    if (page == kBlockPages) return {};
    due += steps * lines_per_1024_steps;
    const std::size_t most = std::min(due / 1024, lines[page]);
    // As even as whole lines allow: the remainder is due in the next tile.
    const std::size_t each = std::max<std::size_t>(1, (most + steps / 2) / steps);
    const Lines part{data[page], std::min(most / each, steps), each, begin[page], into};
    const std::size_t count = part.steps * each;
    due -= count * 1024;
    data[page] += count * kLineBytes;
    lines[page] -= count;
    if (lines[page] == 0) ++page;
    return part;
  }
};

}  // namespace tributary::cpu::bf16_detail
TRIBUTARY_BF16_END
