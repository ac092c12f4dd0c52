// Products of a few query rows and the rows of a page, read where they lie: a row is widened in
// registers and nothing is written back. A panel (panel-inl.h) costs a pass over the page that few
// query rows do not earn back.
//
// A step reads two vectors of columns. Two instructions that need no shift widen a vector of bf16:
// its 16-byte blocks are interleaved with zeros, their lower halves into the first vector, their
// upper halves into the second. Queries are split into that order beforehand, outputs are joined at
// the end; fp32 rows stay in order. The last columns of a row that do not fill a step pass through
// a buffer of zeros: nothing is read past a row.

#if defined(TRIBUTARY_KERNELS_CPU_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_KERNELS_CPU_DIRECT_INL_H_
#undef TRIBUTARY_KERNELS_CPU_DIRECT_INL_H_
#else
#define TRIBUTARY_KERNELS_CPU_DIRECT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/base/dtype.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/unpack-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Columns of a step.
HWY_INLINE std::size_t columns_at_once() {
  return 2 * hn::Lanes(F32());
}
inline constexpr std::size_t kMostColumns = 2 * hn::MaxLanes(F32());

/// The first (0) or second vector of a step, widened.
template <std::size_t kVector>
HWY_INLINE hn::Vec<F32> load_columns(const float* from) {
  const F32 d;
  return hn::LoadU(d, from + kVector * hn::Lanes(d));
}
template <std::size_t kVector>
HWY_INLINE hn::Vec<F32> load_columns(const bf16* from) {
  const F32 d;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, to_float(from[kVector]));
#else
  const hn::Repartition<std::uint16_t, F32> d16;
  const auto values = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  const auto zero = hn::Zero(d16);
  if constexpr (kVector == 0) return hn::BitCast(d, hn::InterleaveLower(d16, zero, values));
  return hn::BitCast(d, hn::InterleaveUpper(d16, zero, values));
#endif
}

/// Columns that stay side by side.
HWY_INLINE std::size_t columns_of_a_group() {
  return std::min<std::size_t>(4, hn::Lanes(F32()));
}

/// Where column `c` of a row of T lies after the split.
template <typename T>
HWY_INLINE std::size_t split_place(std::size_t c) {
  if constexpr (std::is_same_v<T, float>) return c;
  const std::size_t group = columns_of_a_group();
  const std::size_t step = c / columns_at_once() * columns_at_once();
  const std::size_t in_step = (c - step) / group;
  return step + in_step % 2 * hn::Lanes(F32()) + in_step / 2 * group + c % group;
}

/// Puts `count` columns in the order in which rows of T are read, zeros up to the end of the last
/// step.
template <typename T>
HWY_INLINE void split_columns(const float* from, std::size_t count, float* to) {
  std::fill_n(to, round_up(count, columns_at_once()), 0.0F);
  for (std::size_t c = 0; c < count; c += columns_of_a_group()) {
    std::copy_n(from + c, std::min(columns_of_a_group(), count - c), to + split_place<T>(c));
  }
}

/// The reverse.
template <typename T>
HWY_INLINE void join_columns(const float* from, std::size_t count, float* to) {
  for (std::size_t c = 0; c < count; c += columns_of_a_group()) {
    std::copy_n(from + split_place<T>(c), std::min(columns_of_a_group(), count - c), to + c);
  }
}

#if HWY_TARGET != HWY_SCALAR

/// Four sums of lanes, in the order of sum_of_lanes: the upper half is added to the lower one.
template <class D>
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> fold_to_four(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return v;
  } else {
    const hn::Half<D> dh;
    return fold_to_four(dh, hn::Add(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v)));
  }
}

#endif

/// to[i] = the sum of the lanes of v[i], as sum_of_lanes adds them.
HWY_INLINE void sums_of_four(const hn::Vec<F32> (&v)[4], float* to) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < 4; ++i) to[i] = hn::GetLane(v[i]);
#else
  const hn::FixedTag<float, 4> d;
  const Lane4 du;
  hn::Vec<Lane4> words[4];
  for (std::size_t i = 0; i < 4; ++i) words[i] = hn::BitCast(du, fold_to_four(F32(), v[i]));
  transpose(words);
  const auto even = hn::Add(hn::BitCast(d, words[0]), hn::BitCast(d, words[2]));
  const auto odd = hn::Add(hn::BitCast(d, words[1]), hn::BitCast(d, words[3]));
  hn::StoreU(hn::Add(even, odd), d, to);
#endif
}

/// The rows of a page, each `stride` elements from the one before.
template <typename T>
struct PageRows {
  const T* first;
  std::size_t stride, count;
  const T* next = nullptr;  // the page that is read afterwards, to request ahead; may be null

  /// Row `index`, or the last one: what is computed of a row that does not exist is not used.
  [[nodiscard]] HWY_INLINE const T* row(std::size_t index) const {
    return first + std::min(index, count - 1) * stride;
  }
};

#if HWY_TARGET <= HWY_AVX3
inline constexpr std::size_t kRegisters = 32;
#else
inline constexpr std::size_t kRegisters = 16;
#endif

/// Queries that meet a row together, and the rows that they meet together: a vector of a row serves
/// all queries and one of a query all rows, for 8 to 12 sums in 16 registers.
inline constexpr std::size_t kScoreQueries = 6;
template <std::size_t kQueries>
inline constexpr std::size_t kScoreRows = kRegisters / 16 * ceil_div(8, kQueries);

/// Requests the rows of the page after this one that stand where a tile's rows stand, a line each
/// now and then, as the tile goes on: pages are at random places, and rows side by side are read
/// faster than the processor notices.
template <std::size_t kRows, typename T>
struct RowsAhead {
  const T* first;  // null: none
  std::size_t stride;

  HWY_INLINE void request(std::size_t column) const {
    constexpr std::size_t kLine = 64;
    if (first == nullptr || column * sizeof(T) % kLine != 0) return;
    for (std::size_t r = 0; r < kRows; ++r) {
      prefetch_far(reinterpret_cast<const std::byte*>(first), (r * stride + column) * sizeof(T));
    }
  }
};

/// Adds to sums[q * kRows + r].
template <std::size_t kVector, std::size_t kRows, std::size_t kSums, typename T>
HWY_INLINE void add_scores(const T* const (&rows)[kRows], const float* query,
                           std::size_t query_stride, hn::Vec<F32> (&sums)[kSums]) {
  const F32 d;
  hn::Vec<F32> columns[kRows];
  for (std::size_t r = 0; r < kRows; ++r) columns[r] = load_columns<kVector>(rows[r]);
  for (std::size_t s = 0; s < kSums; s += kRows) {
    const auto value = hn::Load(d, query + s / kRows * query_stride + kVector * hn::Lanes(d));
    for (std::size_t r = 0; r < kRows; ++r) {
      sums[s + r] = hn::MulAdd(columns[r], value, sums[s + r]);
    }
  }
}

/// scores[q][row ..] of kQueries queries and the next rows of the page.
template <std::size_t kQueries, typename T>
HWY_INLINE void score_tile(const PageRows<T>& page, std::size_t row, const float* query,
                           std::size_t query_stride, std::size_t depth, float* scores) {
  constexpr std::size_t kRows = kScoreRows<kQueries>;
  constexpr std::size_t kSums = kRows * kQueries;
  const std::size_t columns = columns_at_once();
  const T* rows[kRows];
  for (std::size_t r = 0; r < kRows; ++r) rows[r] = page.row(row + r);
  hn::Vec<F32> sums[kSums];
  for (auto& sum : sums) sum = hn::Zero(F32());
  const RowsAhead<kRows, T> ahead{page.next == nullptr ? nullptr : page.next + row * page.stride,
                                  page.stride};
  std::size_t c = 0;
  for (; c + columns <= depth; c += columns) {
    ahead.request(c);
    add_scores<0>(rows, query + c, query_stride, sums);
    add_scores<1>(rows, query + c, query_stride, sums);
    for (const T*& at : rows) at += columns;
  }
  if (c < depth) {
    T last[kRows][kMostColumns] = {};
    for (std::size_t r = 0; r < kRows; ++r) {
      std::memcpy(last[r], rows[r], (depth - c) * sizeof(T));
      rows[r] = last[r];
    }
    add_scores<0>(rows, query + c, query_stride, sums);
    add_scores<1>(rows, query + c, query_stride, sums);
  }
  float reduced[round_up(kSums, 4)];
  for (std::size_t s = 0; s < kSums; s += 4) {
    const auto at = [&](std::size_t i) HWY_ATTR { return sums[std::min(s + i, kSums - 1)]; };
    sums_of_four({at(0), at(1), at(2), at(3)}, reduced + s);
  }
  for (std::size_t q = 0; q < kQueries; ++q) {
    std::copy_n(reduced + q * kRows, std::min(kRows, kBlockRows - row),
                scores + q * kBlockRows + row);
  }
}

template <std::size_t kQueries, typename T, class Between>
HWY_INLINE void score_queries(const PageRows<T>& page, const float* query, std::size_t query_stride,
                              std::size_t depth, float* scores, const Between& between) {
  for (std::size_t row = 0; row < page.count; row += kScoreRows<kQueries>) {
    between();
    score_tile<kQueries>(page, row, query, query_stride, depth, scores);
  }
}

/// scores[q][row] = the product of query q, split, and the row, for the rows of a page. `between`
/// is called before each tile.
template <typename T, class Between>
HWY_NOINLINE void direct_scores(PageRows<T> page, const float* query, std::size_t query_stride,
                                std::size_t queries, std::size_t depth, float* scores,
                                const Between& between) {
  for (; queries >= kScoreQueries; queries -= kScoreQueries) {
    score_queries<kScoreQueries>(page, query, query_stride, depth, scores, between);
    page.next = nullptr;  // requested once
    query += kScoreQueries * query_stride;
    scores += kScoreQueries * kBlockRows;
  }
  switch (queries) {
    case 5:
      return score_queries<5>(page, query, query_stride, depth, scores, between);
    case 4:
      return score_queries<4>(page, query, query_stride, depth, scores, between);
    case 3:
      return score_queries<3>(page, query, query_stride, depth, scores, between);
    case 2:
      return score_queries<2>(page, query, query_stride, depth, scores, between);
    case 1:
      return score_queries<1>(page, query, query_stride, depth, scores, between);
    default:
      return;
  }
}

/// Queries of a tile of values, and its steps, for as many sums.
inline constexpr std::size_t kValueQueries = 6;
template <std::size_t kQueries>
inline constexpr std::size_t kValueSteps = kRegisters / 16 * ceil_div(4, kQueries);

/// output[q][0 .. kSteps steps), split, of kQueries queries whose weights are of `depth` rows.
template <Finish kFinish, std::size_t kQueries, std::size_t kSteps, typename T>
HWY_INLINE void value_tile(const float* HWY_RESTRICT weights, const T* HWY_RESTRICT rows,
                           std::size_t stride, std::size_t depth, float* HWY_RESTRICT output,
                           std::size_t output_stride, const float* HWY_RESTRICT scale) {
  const F32 d;
  using V = hn::Vec<F32>;
  const std::size_t columns = columns_at_once();
  V sums[kQueries][2 * kSteps];
  for (auto& of_query : sums) {
    for (V& sum : of_query) sum = hn::Zero(d);
  }
  for (std::size_t row = 0; row < depth; ++row) {
    const T* from = rows + row * stride;
    // Whichever is fewer waits in registers: weights, or vectors of the row.
    if constexpr (kQueries <= 2 * kSteps) {
      V weight[kQueries];
      for (std::size_t q = 0; q < kQueries; ++q) {
        weight[q] = hn::Set(d, weights[q * kBlockRows + row]);
      }
      for (std::size_t s = 0; s < kSteps; ++s) {
        const V first = load_columns<0>(from + s * columns);
        const V second = load_columns<1>(from + s * columns);
        for (std::size_t q = 0; q < kQueries; ++q) {
          sums[q][2 * s] = hn::MulAdd(weight[q], first, sums[q][2 * s]);
          sums[q][2 * s + 1] = hn::MulAdd(weight[q], second, sums[q][2 * s + 1]);
        }
      }
    } else {
      V values[2 * kSteps];
      for (std::size_t s = 0; s < kSteps; ++s) {
        values[2 * s] = load_columns<0>(from + s * columns);
        values[2 * s + 1] = load_columns<1>(from + s * columns);
      }
      for (std::size_t q = 0; q < kQueries; ++q) {
        const V weight = hn::Set(d, weights[q * kBlockRows + row]);
        for (std::size_t v = 0; v < 2 * kSteps; ++v) {
          sums[q][v] = hn::MulAdd(weight, values[v], sums[q][v]);
        }
      }
    }
  }
  for (std::size_t q = 0; q < kQueries; ++q) {
    for (std::size_t v = 0; v < 2 * kSteps; ++v) {
      float* out = output + q * output_stride + v * hn::Lanes(d);
      V result = sums[q][v];
      if constexpr (kFinish == Finish::kScaleAdd) {
        result = hn::MulAdd(hn::Load(d, out), hn::Set(d, scale[q]), result);
      }
      hn::Store(result, d, out);
    }
  }
}

template <Finish kFinish, std::size_t kQueries, typename T, class Between>
HWY_INLINE void value_queries(const float* weights, const PageRows<T>& page, std::size_t width,
                              float* output, std::size_t output_stride, const float* scale,
                              const Between& between) {
  constexpr std::size_t kSteps = kValueSteps<kQueries>;
  const std::size_t columns = columns_at_once();
  std::size_t c = 0;
  for (; c + kSteps * columns <= width; c += kSteps * columns) {
    between();
    value_tile<kFinish, kQueries, kSteps>(weights, page.first + c, page.stride, page.count,
                                          output + c, output_stride, scale);
  }
  for (; c + columns <= width; c += columns) {
    value_tile<kFinish, kQueries, 1>(weights, page.first + c, page.stride, page.count, output + c,
                                     output_stride, scale);
  }
  if (c < width) {
    T last[kBlockRows][kMostColumns] = {};
    for (std::size_t row = 0; row < page.count; ++row) {
      std::memcpy(last[row], page.row(row) + c, (width - c) * sizeof(T));
    }
    value_tile<kFinish, kQueries, 1>(weights, last[0], kMostColumns, page.count, output + c,
                                     output_stride, scale);
  }
}

/// output[q] = the sum of the page's rows by weights[q], split (kStore), or added to output[q]
/// times scale[q] (kScaleAdd). `between` is called before each tile.
template <Finish kFinish, typename T, class Between>
HWY_NOINLINE void direct_values(const float* weights, std::size_t queries, const PageRows<T>& page,
                                std::size_t width, float* output, std::size_t output_stride,
                                const float* scale, const Between& between) {
  const auto add = [&]<std::size_t kQueries>() HWY_ATTR {
    value_queries<kFinish, kQueries>(weights, page, width, output, output_stride, scale, between);
  };
  for (; queries >= kValueQueries; queries -= kValueQueries) {
    add.template operator()<kValueQueries>();
    weights += kValueQueries * kBlockRows;
    output += kValueQueries * output_stride;
    if constexpr (kFinish == Finish::kScaleAdd) scale += kValueQueries;
  }
  switch (queries) {
    case 5:
      return add.template operator()<5>();
    case 4:
      return add.template operator()<4>();
    case 3:
      return add.template operator()<3>();
    case 2:
      return add.template operator()<2>();
    case 1:
      return add.template operator()<1>();
    default:
      return;
  }
}

/// Calls of `between` for a block of `queries` queries, about: where they are of one tile, all.
HWY_INLINE std::size_t direct_steps(std::size_t queries, std::size_t width) {
  return ceil_div(queries, kScoreQueries) * ceil_div(kBlockRows, kScoreRows<kScoreQueries>) +
         ceil_div(queries, kValueQueries) * ceil_div(width, columns_at_once());
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
