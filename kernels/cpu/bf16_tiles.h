// The two matrix products of decode attention in BF16 dot products, one register tile at a time.
// Neither needs the cached rows packed: scores broadcast pairs of neighbouring columns, which lie
// together in a row as it is stored; weighted values interleave two rows in registers, on a port
// that the dot products leave idle. kernels/cpu/README.md has the reasoning and the figures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/bf16_math.h"
#include "kernels/cpu/processor_choice.h"

TRIBUTARY_BF16_BEGIN
namespace tributary::cpu::bf16_detail {

/// Cache lines to prefetch while a tile is computed: `each` lines in each of its first `steps`
/// steps. They are spread out because processors drop requests that come faster than memory
/// answers. Each is requested again kAgain lines later, when there is still time to fetch a dropped
/// one.
struct Lines {
  const std::byte* data = nullptr;
  std::size_t steps = 0, each = 0;
  const std::byte* begin = nullptr;  // of the page that `data` is a part of
  PrefetchInto into = PrefetchInto::kFirstLevel;

  // Share of the read bandwidth with one head, over many pages: without a second request 74%; after
  // 16 lines 77%, after 32 and 48 81%, after 64 80%. A third request gains nothing.
  static constexpr std::ptrdiff_t kAgain = 32;

  [[gnu::always_inline]] void ask(std::size_t step) const {
    if (step >= steps) return;
    const std::byte* line = data + step * each * 64;
    for (std::size_t more = 0; more < each; ++more) {
      request(line);
      if (line - begin >= kAgain * 64) request(line - kAgain * 64);
      line += 64;
    }
  }

 private:
  [[gnu::always_inline]] void request(const std::byte* line) const {
    if (into == PrefetchInto::kSecondLevel) {
      _mm_prefetch(line, _MM_HINT_T1);
    } else {
      _mm_prefetch(line, _MM_HINT_T0);
    }
  }
};

/// Columns (words) of a cached row in one step of the first product: 1, or 4 with so few heads that
/// a vector holds 4 query rows x 4 columns instead of 16 query rows.
enum class Step : std::size_t { kOneWord = 1, kFourWords = 4 };

template <Step kStep>
[[gnu::always_inline]] inline Words broadcast(const std::byte* from) {
  if constexpr (kStep == Step::kOneWord) {
    std::int32_t word;  // NOLINT(cppcoreguidelines-init-variables): filled by the next line
    std::memcpy(&word, from, sizeof word);
    return _mm512_set1_epi32(word);
  } else {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
}

/// Sums of each 4 neighbouring lanes of 4 vectors, to[i * stride + quarter] for vector i.
[[gnu::always_inline]] inline void store_quarter_sums(const F32* v, float* to, std::size_t stride) {
  const F32 a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const F32 b = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const F32 sums = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))) +
                   _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  const Words order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const F32 rows = _mm512_permutexvar_ps(order, sums);
  _mm_storeu_ps(to, _mm512_extractf32x4_ps(rows, 0));
  _mm_storeu_ps(to + stride, _mm512_extractf32x4_ps(rows, 1));
  _mm_storeu_ps(to + 2 * stride, _mm512_extractf32x4_ps(rows, 2));
  _mm_storeu_ps(to + 3 * stride, _mm512_extractf32x4_ps(rows, 3));
}

/// Some columns of the first product.
struct ScoreTile {
  const std::byte* rows = nullptr;  // of the cache, from the first of these columns on
  std::size_t row_bytes = 0;
  const std::uint32_t* query = nullptr;  // [steps][query_stride]: lanes are query rows
  std::size_t query_stride = 0;
  std::size_t steps = 0;
  float* scores = nullptr;  // [cache row][score_stride]
  std::size_t score_stride = 0;
  bool add = false;  // to what is there (kOneWord alone)
  Lines lines;
};

/// kRows rows of the cache against kVectors vectors of query rows.
template <Step kStep, std::size_t kRows, std::size_t kVectors>
[[gnu::noinline]] void score_tile(const ScoreTile& tile) {
  F32 sums[kRows][kVectors];
  const std::size_t score_stride = tile.score_stride;
  TRIBUTARY_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) {
    TRIBUTARY_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  if (kStep == Step::kOneWord && tile.add) {
    TRIBUTARY_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      TRIBUTARY_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_load_ps(tile.scores + r * score_stride + v * kLanes);
      }
    }
  }
  const std::byte* rows = tile.rows;
  const std::uint32_t* query = tile.query;
  const std::size_t row_bytes = tile.row_bytes;
  const Lines lines = tile.lines;
  const std::size_t steps = tile.steps;
  for (std::size_t step = 0; step < steps; ++step) {
    lines.ask(step);
    Words q[kVectors];
    TRIBUTARY_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) q[v] = _mm512_load_si512(query + v * kLanes);
    // One pointer for 4 rows, by addressing modes. If the compiler knew that the stride is
    // constant, it would keep a pointer for each row, most of them in memory.
    std::size_t stride = row_bytes;
    asm("" : "+r"(stride));
    const std::byte* four = rows;
    TRIBUTARY_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      if (r != 0 && r % 4 == 0) four += 4 * stride;
      const Words key = broadcast<kStep>(four + r % 4 * stride);
      TRIBUTARY_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = add_dot(sums[r][v], key, q[v]);
    }
    rows += 4 * static_cast<std::size_t>(kStep);
    query += tile.query_stride;
  }
  if constexpr (kStep == Step::kOneWord) {
    TRIBUTARY_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      TRIBUTARY_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v) {
        _mm512_store_ps(tile.scores + r * score_stride + v * kLanes, sums[r][v]);
      }
    }
  } else {
    static_assert(kRows % 4 == 0);
    TRIBUTARY_UNROLL
    for (std::size_t r = 0; r < kRows; r += 4) {
      TRIBUTARY_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v) {
        const F32 four[4] = {sums[r][v], sums[r + 1][v], sums[r + 2][v], sums[r + 3][v]};
        store_quarter_sums(four, tile.scores + r * score_stride + v * 4, score_stride);
      }
    }
  }
}

/// Pairs of cached rows: first and second, first + row_pair_bytes and second + row_pair_bytes, ...
struct RowPairs {
  const std::byte* first = nullptr;
  const std::byte* second = nullptr;
  std::size_t count = 0;
};

/// Some rows and columns of the second product.
struct ValueTile {
  const RowPairs* pairs = nullptr;  // offsets in bytes to the tile's columns are in `column_bytes`
  std::size_t pair_groups = 0;
  std::size_t row_pair_bytes = 0, column_bytes = 0;
  const std::uint32_t* weights = nullptr;  // [pair][weight_stride], from the tile's query row on
  std::size_t weight_stride = 0;
  float* output = nullptr;  // [query row][kPanelColumns]; 32 columns are two vectors, permuted
  const float* rescale = nullptr;  // by query row; null: nothing was summed before
  Lines lines;
};

/// Columns of the output that lie together: two lines of a cached row.
inline constexpr std::size_t kPanelColumns = 64;

/// kRows query rows x 32 kLines columns.
template <std::size_t kRows, std::size_t kLines>
[[gnu::noinline]] void value_tile(const ValueTile& tile) {
  constexpr std::size_t kVectors = 2 * kLines;
  F32 sums[kRows][kVectors];
  TRIBUTARY_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) {
    TRIBUTARY_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  if (tile.rescale != nullptr) {
    bool rescale = false;
    TRIBUTARY_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      rescale |= tile.rescale[r] != 1.0F;
      TRIBUTARY_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_load_ps(tile.output + r * kPanelColumns + v * kLanes);
      }
    }
    // Skipped if all factors are 1, which changes no bit.
    if (rescale) {
      TRIBUTARY_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        TRIBUTARY_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) {
          sums[r][v] = _mm512_mul_ps(sums[r][v], _mm512_set1_ps(tile.rescale[r]));
        }
      }
    }
  }
  const std::uint32_t* weights = tile.weights;
  const std::size_t row_pair_bytes = tile.row_pair_bytes;
  const Lines lines = tile.lines;
  std::size_t step = 0;
  for (std::size_t g = 0; g < tile.pair_groups; ++g) {
    const std::byte* first = tile.pairs[g].first + tile.column_bytes;
    const std::byte* second = tile.pairs[g].second + tile.column_bytes;
    const std::size_t count = tile.pairs[g].count;
    for (std::size_t pair = 0; pair < count; ++pair) {
      lines.ask(step);
      ++step;
      Words values[kVectors];
      TRIBUTARY_UNROLL
      for (std::size_t i = 0; i < kLines; ++i) {
        const Words a = _mm512_loadu_si512(first + i * 64);
        const Words b = _mm512_loadu_si512(second + i * 64);
        values[2 * i] = _mm512_unpacklo_epi16(a, b);
        values[2 * i + 1] = _mm512_unpackhi_epi16(a, b);
      }
      TRIBUTARY_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        const Words weight = _mm512_set1_epi32(static_cast<std::int32_t>(weights[r]));
        TRIBUTARY_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) {
          sums[r][v] = add_dot(sums[r][v], weight, values[v]);
        }
      }
      first += row_pair_bytes;
      second += row_pair_bytes;
      weights += tile.weight_stride;
    }
  }
  TRIBUTARY_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) {
    TRIBUTARY_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) {
      _mm512_store_ps(tile.output + r * kPanelColumns + v * kLanes, sums[r][v]);
    }
  }
}

}  // namespace tributary::cpu::bf16_detail
TRIBUTARY_BF16_END
