// Softmax attention over the rows of a leaf, kBlockTokens at a time, with a running maximum: scores
// and weights of a block lie transposed, [cache row][query row], so that lanes are query rows and
// neither the maximum nor the sum crosses lanes.
//
// A query row's result depends only on its query, the cache rows that it sees, the softmax scale
// and the number of heads of the call (score_step). Every sum is one chain over columns or cache
// rows in order, blocks start at the leaf's first row, and cache rows that it does not see have
// weight exactly 0 in sums of non-negative numbers and are not multiplied.
#include "kernels/cpu/bf16_attend.h"

#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/ceil_div.h"
#include "core/interface/visible_rows.h"
#include "kernels/cpu/bf16_math.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/bf16_tiles.h"
#include "kernels/cpu/bf16_unit.h"

TRIBUTARY_BF16_BEGIN
namespace tributary::cpu::bf16_detail {
namespace {

void pack_query(const Unit& unit) {
  const LeafKernelArgs& args = *unit.args;
  const std::size_t row_bytes = args.latent_dim * sizeof(bf16);
  const auto row = [&](std::size_t r) {
    return args.queries + r / unit.heads * args.query_stride_bytes +
           (args.head_begin + r % unit.heads) * row_bytes;
  };
  if (unit.step == Step::kFourWords) {
    constexpr std::size_t kPanelRows = kTileVectors * 4;
    for (std::size_t r = 0; r < unit.query_vectors * 4; ++r) {
      const std::byte* from = r < unit.rows ? row(r) : unit.zeros;
      const QueryPanel panel = unit.query_panel(r / kPanelRows * kTileVectors);
      std::uint32_t* to = panel.data + r % kPanelRows * 4;
      for (std::size_t step = 0; step < unit.steps; ++step) {
        std::memcpy(to + step * panel.stride(), from + step * 16, 16);
      }
    }
    return;
  }
  for (std::size_t vector = 0; vector < unit.query_vectors; ++vector) {
    const QueryPanel panel = unit.query_panel(vector / kTileVectors * kTileVectors);
    std::uint32_t* to = panel.data + vector % kTileVectors * kLanes;
    const std::byte* from[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::size_t r = vector * kLanes + i;
      from[i] = r < unit.rows ? row(r) : unit.zeros;
    }
    for (std::size_t word = 0; word < unit.words; word += kLanes) {
      const std::size_t count = std::min(kLanes, unit.words - word);
      const auto mask = static_cast<__mmask16>((1U << count) - 1);
      Words square[kLanes];
      for (std::size_t i = 0; i < kLanes; ++i) {
        square[i] = _mm512_maskz_loadu_epi32(mask, from[i] + word * 4);
      }
      transpose(square);
      for (std::size_t i = 0; i < count; ++i) {
        _mm512_store_si512(to + (word + i) * panel.stride(), square[i]);
      }
    }
  }
}

/// Scores of a block become weights exp(score - maximum) in bf16; maxima, sums (of the weights
/// before rounding) and rescale factors follow. kAll: every query row sees all `count` rows, an
/// even number.
template <bool kAll>
void weigh_vector(const Unit& unit, std::size_t lane, Words seen, std::size_t count,
                  const Lines& lines) {
  const F32 scale = _mm512_set1_ps(unit.args->softmax_scale);
  const F32 minus_infinity = _mm512_set1_ps(kMinusInfinity);
  const float* scores = unit.scores + lane;
  const auto sees = [&](std::size_t row) __attribute__((always_inline)) {
    return _mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32(static_cast<std::int32_t>(row)));
  };
  const F32 before = _mm512_load_ps(unit.max + lane);
  F32 max = minus_infinity;
  for (std::size_t row = 0; row < count; ++row) {
    F32 score = _mm512_load_ps(scores + row * unit.stride);
    if constexpr (!kAll) score = _mm512_mask_blend_ps(sees(row), minus_infinity, score);
    max = _mm512_max_ps(score, max);
  }
  // Rounding keeps order: the largest score is the scaled largest product.
  max = _mm512_max_ps(before, _mm512_mul_ps(max, scale));
  const auto weight = [&](std::size_t row) __attribute__((always_inline)) {
    const F32 score = _mm512_mul_ps(_mm512_load_ps(scores + row * unit.stride), scale);
    const F32 value = exp_not_positive(_mm512_sub_ps(score, max));
    // Rows that are not seen may hold anything, and a lane that has seen nothing has no maximum.
    if constexpr (!kAll) return _mm512_maskz_mov_ps(sees(row), value);
    return value;
  };
  F32 sum = _mm512_setzero_ps();
  std::uint32_t* weights = unit.weights + lane;
  for (std::size_t row = 0; row < count; row += 2) {
    lines.ask(row / 2);
    const F32 first = weight(row);
    const F32 second = weight(row + 1);
    sum = _mm512_add_ps(sum, _mm512_add_ps(first, second));
    _mm512_store_si512(weights, pair_weights(first, second));
    weights += unit.stride;
  }
  const F32 rescale = exp_not_positive(_mm512_sub_ps(before, max));
  _mm512_store_ps(unit.max + lane, max);
  _mm512_store_ps(unit.rescale + lane, rescale);
  _mm512_store_ps(unit.sum + lane, _mm512_fmadd_ps(_mm512_load_ps(unit.sum + lane), rescale, sum));
}

void weigh(const Unit& unit, std::size_t begin, std::size_t count, Feed& feed) {
  const auto rows = static_cast<std::int32_t>(count);
  for (std::size_t lane = 0; lane < unit.rows; lane += kLanes) {
    const Words visible = _mm512_load_si512(unit.visible + lane);
    const Words left =
        _mm512_sub_epi32(visible, _mm512_set1_epi32(static_cast<std::int32_t>(begin)));
    const Words seen = _mm512_min_epi32(left, _mm512_set1_epi32(rows));
    const Lines lines = feed.take(ceil_div(count, 2));
    const bool all = _mm512_cmplt_epi32_mask(seen, _mm512_set1_epi32(rows)) == 0;
    if (all && count % 2 == 0) {
      weigh_vector<true>(unit, lane, seen, count, lines);
    } else {
      weigh_vector<false>(unit, lane, seen, count, lines);
    }
  }
}

/// The lines of the next block, of this unit or of the next one, to prefetch, or its rows to
/// gather; those of this block are there.
Feed next_block(const Unit& unit, std::size_t begin, std::size_t seen) {
  const LeafKernelArgs& args = *unit.args;
  // Approximate number of steps of this block.
  const std::size_t count = std::min(kBlockTokens, seen - begin);
  const std::size_t vectors = unit.query_vectors;
  const std::size_t panels = ceil_div(vectors, kTileVectors);
  const std::size_t tile_rows = vectors >= kTileVectors ? 6 : vectors == 1 ? 16 : 8;
  const std::size_t steps =
      ceil_div(count, tile_rows) * panels * unit.steps +
      ceil_div(unit.rows, kLanes) * ceil_div(count, 2) +
      ceil_div(args.kv_lora_rank, kPanelColumns) * ceil_div(unit.rows, 6) * ceil_div(count, 2);
  Feed feed;
  feed.into = args.prefetch;
  if (args.gather != nullptr) {
    args.gather->begin_block(begin, steps);
    feed.gather = args.gather;
    return feed;
  }
  std::size_t lines = 0;
  for (std::size_t i = 0; i < kBlockPages; ++i) {
    const std::size_t row = begin + kBlockTokens + i * kPageTokens;
    if (row < seen) {
      feed.data[i] =
          args.layer + static_cast<std::size_t>(args.pages[row / kPageTokens]) * args.page_bytes;
      const std::size_t rows = std::min<std::size_t>(kPageTokens, seen - row);
      feed.lines[i] = ceil_div(rows * args.row_bytes, kLineBytes);
    } else if (begin + kBlockTokens >= seen && args.next_pages[i] != nullptr) {
      feed.data[i] = args.next_pages[i];
      feed.lines[i] = kPageTokens * args.row_bytes / kLineBytes;
    }
    feed.begin[i] = feed.data[i];
    lines += feed.lines[i];
  }
  if (feed.lines[0] == 0) feed.page = kBlockPages;
  feed.lines_per_1024_steps = ceil_div(lines * 1024, steps);
  return feed;
}

void add_block(const Unit& unit, std::size_t begin, std::size_t seen) {
  const LeafKernelArgs& args = *unit.args;
  const std::size_t count = std::min(kBlockTokens, seen - begin);
  Feed feed = next_block(unit, begin, seen);
  std::array<const std::byte*, kBlockPages> pages{};
  for (std::size_t i = 0; i * kPageTokens < count; ++i) {
    const std::size_t page = begin / kPageTokens + i;
    pages[i] = args.layer + static_cast<std::size_t>(args.pages[page]) * args.page_bytes;
    const std::size_t rows = std::min<std::size_t>(kPageTokens, count - i * kPageTokens);
    score_page(unit, pages[i], rows, unit.scores + i * kPageTokens * unit.stride, feed);
  }
  weigh(unit, begin, count, feed);
  // Runs of query rows that see the same number of rows: all of them, except in a sequence's last
  // blocks.
  const auto seen_by = [&](std::size_t row) {
    const auto left =
        static_cast<std::int32_t>(unit.visible[row] - static_cast<std::int32_t>(begin));
    return static_cast<std::size_t>(std::clamp(left, 0, static_cast<std::int32_t>(count)));
  };
  for (std::size_t run = 0; run < unit.rows;) {
    const std::size_t rows_seen = seen_by(run);
    std::size_t end = run + 1;
    while (end < unit.rows && seen_by(end) == rows_seen) ++end;
    if (rows_seen > 0) add_values(unit, pages, run, end, rows_seen, begin == 0, feed);
    run = end;
  }
}

/// States of all query rows.
void finish(const Unit& unit) {
  const LeafKernelArgs& args = *unit.args;
  const std::size_t rank = args.kv_lora_rank;
  for (std::size_t lane = 0; lane < unit.rows; lane += kLanes) {
    // Meaningless for rows that see nothing, and not used for them.
    const F32 sum = _mm512_load_ps(unit.sum + lane);
    const F32 lse = _mm512_add_ps(_mm512_load_ps(unit.max + lane), log_positive(sum));
    _mm512_store_ps(unit.max + lane, lse);
  }
  for (std::size_t token = 0; token < unit.tokens; ++token) {
    float* record = args.states + token * args.heads * (rank + 1);
    for (std::size_t head = 0; head < unit.heads; ++head) {
      const std::size_t row = token * unit.heads + head;
      float* o = record + (args.head_begin + head) * rank;
      float* lse = record + args.heads * rank + args.head_begin + head;
      if (unit.visible[row] == 0) {
        std::fill_n(o, rank, 0.0F);
        *lse = kMinusInfinity;
        continue;
      }
      *lse = unit.max[row];
      const F32 inverse = _mm512_set1_ps(1.0F / unit.sum[row]);
      for (std::size_t column = 0; column < rank; column += 2 * kLanes) {
        const std::size_t panel = column / kPanelColumns * kPanelColumns;
        const float* from =
            unit.output + panel * unit.stride + row * kPanelColumns + (column - panel);
        F32 first;   // NOLINT(cppcoreguidelines-init-variables): both filled by the next line
        F32 second;  // NOLINT(cppcoreguidelines-init-variables)
        order_columns(_mm512_load_ps(from), _mm512_load_ps(from + kLanes), &first, &second);
        _mm512_storeu_ps(o + column, _mm512_mul_ps(first, inverse));
        _mm512_storeu_ps(o + column + kLanes, _mm512_mul_ps(second, inverse));
      }
    }
  }
}

bool supports(std::size_t latent_dim, std::size_t kv_lora_rank) {
  return latent_dim % 2 == 0 && kv_lora_rank % (2 * kLanes) == 0;
}

std::size_t scratch_bytes(std::size_t latent_dim, std::size_t kv_lora_rank) {
  const std::size_t words =
      kMaxCopyingPairRows * (latent_dim / 2 + kBlockTokens + kBlockTokens / 2 +
                             round_up(kv_lora_rank, kPanelColumns) + 4);
  return words * 4 + round_up(latent_dim * sizeof(bf16), kLineBytes);
}

UnitCut unit_cut(std::size_t heads, std::size_t /*tokens*/, bool copies) {
  const std::size_t rows = heads <= kFewHeads ? kFewPairRows : kPairRows;
  return {.least_rows = rows,
          .most_rows = copies ? kMaxCopyingPairRows : kMaxPairRows,
          .quantum = rows};
}

Unit make_unit(const LeafKernelArgs& args, std::byte* scratch) {
  Unit unit{.args = &args};
  unit.words = args.latent_dim / 2;
  unit.step = score_step(args.heads, unit.words);
  unit.tokens = static_cast<std::size_t>(args.task->tokens);
  unit.heads = args.head_end - args.head_begin;
  unit.rows = unit.tokens * unit.heads;
  unit.stride = round_up(unit.rows, kLanes);
  unit.steps = unit.words / static_cast<std::size_t>(unit.step);
  unit.query_vectors = ceil_div(unit.rows * static_cast<std::size_t>(unit.step), kLanes);
  const auto take = [&scratch](std::size_t words) {
    std::byte* part = scratch;
    scratch += words * 4;
    return part;
  };
  unit.query = reinterpret_cast<std::uint32_t*>(take(unit.words * unit.stride));
  unit.scores = reinterpret_cast<float*>(take(kBlockTokens * unit.stride));
  unit.weights = reinterpret_cast<std::uint32_t*>(take(kBlockTokens / 2 * unit.stride));
  unit.max = reinterpret_cast<float*>(take(unit.stride));
  unit.sum = reinterpret_cast<float*>(take(unit.stride));
  unit.rescale = reinterpret_cast<float*>(take(unit.stride));
  unit.visible = reinterpret_cast<std::int32_t*>(take(unit.stride));
  unit.zeros = take(round_up(args.latent_dim * sizeof(bf16), kLineBytes) / 4);
  unit.output = reinterpret_cast<float*>(scratch);
  std::memset(const_cast<std::byte*>(unit.zeros), 0, args.latent_dim * sizeof(bf16));
  std::fill_n(unit.max, unit.stride, kMinusInfinity);
  std::fill_n(unit.sum, unit.stride, 0.0F);
  for (std::size_t row = 0; row < unit.stride; ++row) {
    const std::size_t token = std::min(row / unit.heads, unit.tokens - 1);
    unit.visible[row] = visible_rows(*args.task, static_cast<std::int32_t>(token));
  }
  return unit;
}

void attend_leaf(const LeafKernelArgs& args, std::byte* scratch) {
  const Unit unit = make_unit(args, scratch);
  pack_query(unit);
  const auto seen = static_cast<std::size_t>(unit.visible[unit.rows - 1]);
  for (std::size_t begin = 0; begin < seen; begin += kBlockTokens) add_block(unit, begin, seen);
  finish(unit);
}

// Whole vectors only: the count is rounded down.
void exp_all(const float* src, float* dst, std::size_t count) {
  for (std::size_t i = 0; i + kLanes <= count; i += kLanes) {
    _mm512_storeu_ps(dst + i, exp_not_positive(_mm512_loadu_ps(src + i)));
  }
}
void log_all(const float* src, float* dst, std::size_t count) {
  for (std::size_t i = 0; i + kLanes <= count; i += kLanes) {
    _mm512_storeu_ps(dst + i, log_positive(_mm512_loadu_ps(src + i)));
  }
}

}  // namespace
}  // namespace tributary::cpu::bf16_detail
TRIBUTARY_BF16_END

namespace tributary::cpu {

const KernelTable* bf16_kernel_table(const KernelTable& base) {
  if (__builtin_cpu_supports("avx512bf16") == 0) return nullptr;
  static const PairKernel kernel = {.block_rows = bf16_detail::kBlockTokens,
                                    .supports = bf16_detail::supports,
                                    .scratch_bytes = bf16_detail::scratch_bytes,
                                    .unit_cut = bf16_detail::unit_cut,
                                    .attend_leaf = bf16_detail::attend_leaf};
  static const KernelTable table = [&base] {
    KernelTable copy = base;
    copy.name = "AVX3_BF16";
    copy.pairs = &kernel;
    copy.exp_not_positive = bf16_detail::exp_all;
    copy.log = bf16_detail::log_all;
    return copy;
  }();
  return &table;
}

const KernelTable* few_bf16_kernel_table(const KernelTable& base) {
  const KernelTable* all = bf16_kernel_table(base);
  if (all == nullptr) return nullptr;
  static const KernelTable table = [all] {
    KernelTable copy = *all;
    copy.name = "AVX3_BF16_FEW";
    copy.pairs_most_heads = kFewHeads;
    return copy;
  }();
  return &table;
}

}  // namespace tributary::cpu

#else

namespace tributary::cpu {

const KernelTable* bf16_kernel_table(const KernelTable& /*base*/) {
  return nullptr;
}

const KernelTable* few_bf16_kernel_table(const KernelTable& /*base*/) {
  return nullptr;
}

}  // namespace tributary::cpu

#endif
