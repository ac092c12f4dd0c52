// Softmax attention of up to kMaxQueryRows query rows over the rows of a leaf, one block of
// kBlockRows rows at a time, with a running maximum.
//
// A query row's result depends only on its query, the rows it sees and the instruction set. Blocks
// start at the leaf's first row, every sum has a fixed order inside a block and over blocks
// (panel-inl.h), and rows that it does not see are skipped, never multiplied by 0: their scores are
// replaced before the maximum, their weights are exactly 0 in a sum of non-negative numbers, and
// their values are not read.

#if defined(TRIBUTARY_KERNELS_CPU_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_KERNELS_CPU_ATTEND_INL_H_
#undef TRIBUTARY_KERNELS_CPU_ATTEND_INL_H_
#else
#define TRIBUTARY_KERNELS_CPU_ATTEND_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/interface/visible_rows.h"
#include "kernels/cpu/direct-inl.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/unpack-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Query rows of one unit of work. Workspace: query and visible are filled by the caller; visible
/// does not decrease from row to row.
struct QueryRows {
  std::size_t count = 0, depth = 0, width = 0;
  float softmax_scale = 0;
};

/// Scores of a block become weights exp(score - maximum); maxima, sums and rescale factors follow.
/// `seen(row)` is how many of the block's rows the query row sees, >= 1.
template <class Seen>
HWY_INLINE void weigh_block(const AttendWorkspace& ws, float softmax_scale, std::size_t begin,
                            std::size_t end, bool first_block, const Seen& seen) {
  const F32 d;
  using V = hn::Vec<F32>;
  const std::size_t lanes = hn::Lanes(d);
  const V scale = hn::Set(d, softmax_scale);
  const V minus_infinity = hn::Set(d, kMinusInfinity);
  for (std::size_t q = begin; q < end; ++q) {
    float* scores = ws.scores + q * kBlockRows;
    const std::size_t rows = seen(q);
    V max = minus_infinity;
    for (std::size_t j = 0; j < kBlockRows; j += lanes) {
      V score = hn::Mul(hn::Load(d, scores + j), scale);
      if (j + lanes > rows) {
        const auto visible = hn::FirstN(d, rows > j ? rows - j : 0);
        score = hn::IfThenElse(visible, score, minus_infinity);
      }
      hn::Store(score, d, scores + j);
      max = hn::Max(max, score);
    }
    max = hn::MaxOfLanes(d, max);
    if (!first_block) max = hn::Max(max, hn::Set(d, ws.max[q]));
    V sum = hn::Zero(d);
    for (std::size_t j = 0; j < kBlockRows; j += lanes) {
      const V weight = exp_not_positive(d, hn::Sub(hn::Load(d, scores + j), max));
      hn::Store(weight, d, scores + j);
      sum = hn::Add(sum, weight);
    }
    ws.rescale[q] = ws.max[q];
    ws.max[q] = hn::GetLane(max);
    ws.block_sum[q] = sum_of_lanes(d, sum);
  }
  // Lanes are rows here. Vectors may run past `end` into rows that do not exist, which is harmless.
  for (std::size_t q = begin; q < end; q += lanes) {
    const V block_sum = hn::LoadU(d, ws.block_sum + q);
    if (first_block) {
      hn::StoreU(block_sum, d, ws.sum + q);
      continue;
    }
    const V rescale =
        exp_not_positive(d, hn::Sub(hn::LoadU(d, ws.rescale + q), hn::LoadU(d, ws.max + q)));
    hn::StoreU(rescale, d, ws.rescale + q);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, ws.sum + q), rescale, block_sum), d, ws.sum + q);
  }
}

/// Distance between the queries of a unit, in floats.
template <bool kDirect>
HWY_INLINE std::size_t query_stride(std::size_t depth) {
  return kDirect ? round_up(depth, kPanel) : depth;
}

/// Products with a block that was unpacked into panels. `between` is called before each panel.
template <class Between>
struct UnpackedBlock {
  const QueryRows& rows;
  const AttendWorkspace& ws;
  const Between& between;

  /// Of query rows [begin, rows.count).
  HWY_INLINE void scores(std::size_t begin) const {
    for (std::size_t k = 0; k < rows.depth; k += kPanelDepth) {
      const float* query = ws.query + begin * rows.depth + k;
      const F32Block keys{ws.keys + k * kBlockRows};
      float* to = ws.scores + begin * kBlockRows;
      const std::size_t depth = std::min(kPanelDepth, rows.depth - k);
      between();
      if (k == 0) {
        panel_product<Finish::kStore>(query, rows.depth, rows.count - begin, keys, depth, to,
                                      kBlockRows, nullptr);
      } else {
        panel_product<Finish::kAdd>(query, rows.depth, rows.count - begin, keys, depth, to,
                                    kBlockRows, nullptr);
      }
    }
  }

  /// Of query rows [begin, end), which see the first `seen` rows.
  template <Finish kFinish>
  HWY_INLINE void values(std::size_t begin, std::size_t end, std::size_t seen) const {
    const std::size_t output_stride = round_up(rows.width, kPanel);
    for (std::size_t c = 0; c < rows.width; c += kPanel) {
      between();
      panel_product<kFinish>(ws.scores + begin * kBlockRows, kBlockRows, end - begin,
                             F32Block{ws.values + c * kBlockRows}, seen,
                             ws.output + begin * output_stride + c, output_stride,
                             ws.rescale + begin);
    }
  }
};

/// Products with a page that is read where it lies.
template <typename T, class Between>
struct DirectBlock {
  const QueryRows& rows;
  const AttendWorkspace& ws;
  const Between& between;
  PageRows<T> page;

  HWY_INLINE void scores(std::size_t begin) const {
    const std::size_t stride = query_stride<true>(rows.depth);
    direct_scores(page, ws.query + begin * stride, stride, rows.count - begin, rows.depth,
                  ws.scores + begin * kBlockRows, between);
  }

  template <Finish kFinish>
  HWY_INLINE void values(std::size_t begin, std::size_t end, std::size_t seen) const {
    const std::size_t output_stride = round_up(rows.width, kPanel);
    direct_values<kFinish>(ws.scores + begin * kBlockRows, end - begin,
                           PageRows<T>{.first = page.first, .stride = page.stride, .count = seen},
                           rows.width, ws.output + begin * output_stride, output_stride,
                           ws.rescale + begin, between);
  }
};

/// Adds one block, of which `products` has scores and values, to the query rows that see any of it.
template <class Products>
HWY_INLINE void add_block(const QueryRows& rows, const AttendWorkspace& ws, std::size_t block,
                          const Products& products) {
  const auto block_begin = static_cast<std::int32_t>(block * kBlockRows);
  const auto seen = [&](std::size_t q) HWY_ATTR {
    return static_cast<std::size_t>(std::clamp<std::int32_t>(
        ws.visible[q] - block_begin, 0, static_cast<std::int32_t>(kBlockRows)));
  };
  std::size_t begin = 0;
  while (begin < rows.count && seen(begin) == 0) ++begin;

  products.scores(begin);
  weigh_block(ws, rows.softmax_scale, begin, rows.count, block == 0, seen);

  // Runs of query rows that see the same number of rows: all of them, except in a sequence's last
  // blocks. Only the rows that see a value read it.
  for (std::size_t run = begin; run < rows.count;) {
    const std::size_t depth = seen(run);
    std::size_t run_end = run + 1;
    while (run_end < rows.count && seen(run_end) == depth) ++run_end;
    if (block == 0) {
      products.template values<Finish::kStore>(run, run_end, depth);
    } else {
      products.template values<Finish::kScaleAdd>(run, run_end, depth);
    }
    run = run_end;
  }
}

/// o[width] and lse of query row q. Its sums lie in the order in which `T` says that rows are read:
/// `float` in order, `bf16` split (direct-inl.h).
template <typename T>
HWY_INLINE void finish_row(const QueryRows& rows, const AttendWorkspace& ws, std::size_t q,
                           float* HWY_RESTRICT o, float* HWY_RESTRICT lse) {
  const F32 d;
  if (ws.visible[q] == 0) {
    std::fill_n(o, rows.width, 0.0F);
    *lse = kMinusInfinity;
    return;
  }
  float* sums = ws.output + q * round_up(rows.width, kPanel);
  const auto weights = hn::Set(d, ws.sum[q]);
  // Whole steps: the last columns of a split row lie in both of its vectors.
  for (std::size_t c = 0; c < round_up(rows.width, columns_at_once()); c += hn::Lanes(d)) {
    hn::Store(hn::Div(hn::Load(d, sums + c), weights), d, sums + c);
  }
  join_columns<T>(sums, rows.width, o);
  *lse = ws.max[q] + hn::GetLane(log_positive(d, weights));
}

/// Queries of Q, widened; split if rows of T are read where they lie.
template <bool kDirect, typename T, typename Q>
HWY_INLINE void take_queries(const Q* from, std::size_t count, std::size_t depth,
                             const AttendWorkspace& ws, float* to) {
  if constexpr (kDirect) {
    for (std::size_t q = 0; q < count; ++q) {
      widen_row(from + q * depth, depth, ws.keys);
      split_columns<T>(ws.keys, depth, to + q * query_stride<kDirect>(depth));
    }
  } else {
    widen_row(from, count * depth, to);
  }
}

HWY_INLINE const std::byte* page_of(const LeafKernelArgs& args, std::size_t block) {
  return args.layer + static_cast<std::size_t>(args.pages[block]) * args.page_bytes;
}

/// kDirect: the rows, of T, are read where they lie.
template <bool kDirect, typename T>
HWY_NOINLINE void attend_rows(const LeafKernelArgs& args, const AttendWorkspace& ws) {
  const LeafTask& task = *args.task;
  const std::size_t heads = args.head_end - args.head_begin;
  const auto tokens = static_cast<std::size_t>(task.tokens);
  const QueryRows rows{.count = tokens * heads,
                       .depth = args.latent_dim,
                       .width = args.kv_lora_rank,
                       .softmax_scale = args.softmax_scale};
  for (std::size_t token = 0; token < tokens; ++token) {
    const std::size_t first = args.head_begin * args.latent_dim;
    const std::byte* record = args.queries + token * args.query_stride_bytes;
    float* query = ws.query + token * heads * query_stride<kDirect>(rows.depth);
    if (args.query_dtype == DType::kF32) {
      take_queries<kDirect, T>(reinterpret_cast<const float*>(record) + first, heads, rows.depth,
                               ws, query);
    } else {
      take_queries<kDirect, T>(reinterpret_cast<const bf16*>(record) + first, heads, rows.depth, ws,
                               query);
    }
    std::fill_n(ws.visible + token * heads, heads,
                visible_rows(task, static_cast<std::int32_t>(token)));
  }
  const auto between = [&]() HWY_ATTR {
    if (args.gather != nullptr) args.gather->request(args.gather->advance(1));
  };
  const auto seen = static_cast<std::size_t>(ws.visible[rows.count - 1]);
  const std::size_t steps = kDirect
                                ? direct_steps(rows.count, rows.width)
                                : ceil_div(rows.depth, kPanelDepth) + ceil_div(rows.width, kPanel);
  for (std::size_t block = 0; block * kBlockRows < seen; ++block) {
    if (args.gather != nullptr) args.gather->begin_block(block * kBlockRows, steps);
    const std::byte* next = nullptr;
    if (args.gather == nullptr) {
      next = (block + 1) * kBlockRows < seen ? page_of(args, block + 1) : args.next_pages[0];
    }
    const PageRows<T> page{.first = reinterpret_cast<const T*>(page_of(args, block)),
                           .stride = args.row_bytes / sizeof(T),
                           .count = std::min(kBlockRows, seen - block * kBlockRows),
                           .next = reinterpret_cast<const T*>(next)};
    if constexpr (kDirect) {
      add_block(rows, ws, block, DirectBlock<T, decltype(between)>{rows, ws, between, page});
    } else {
      unpack_keys(page.first, page.stride, page.count, args.latent_dim, ws.keys);
      unpack_values(page.first, page.stride, page.count, args.kv_lora_rank, ws.values);
      add_block(rows, ws, block, UnpackedBlock<decltype(between)>{rows, ws, between});
    }
  }
  for (std::size_t q = 0; q < rows.count; ++q) {
    const std::size_t head = args.head_begin + q % heads;
    float* record = args.states + (q / heads) * args.heads * (args.kv_lora_rank + 1);
    finish_row<std::conditional_t<kDirect, T, float>>(
        rows, ws, q, record + head * args.kv_lora_rank,
        record + args.heads * args.kv_lora_rank + head);
  }
}

inline void attend_leaf(const LeafKernelArgs& args, const AttendWorkspace& ws) {
  // By the call's heads alone: how it is cut into units must not change the bits.
  const bool direct = args.heads <= kFewHeads;
  const bool f32 = args.row_format == RowFormat::kF32;
  if (direct) {
    f32 ? attend_rows<true, float>(args, ws) : attend_rows<true, bf16>(args, ws);
  } else {
    f32 ? attend_rows<false, float>(args, ws) : attend_rows<false, bf16>(args, ws);
  }
}

inline void attend_dense(const DenseKernelArgs& args, const AttendWorkspace& ws) {
  const DenseAttendArgs& call = *args.call;
  const auto heads = static_cast<std::size_t>(call.heads);
  const auto nope = static_cast<std::size_t>(call.qk_nope_head_dim);
  const auto rope = static_cast<std::size_t>(call.qk_rope_head_dim);
  const auto width = static_cast<std::size_t>(call.v_head_dim);
  const QueryRows rows{.count = args.token_end - args.token_begin,
                       .depth = nope + rope,
                       .width = width,
                       .softmax_scale = call.softmax_scale};
  for (std::size_t q = 0; q < rows.count; ++q) {
    const std::size_t token = args.token_begin + q;
    widen_row(call.q + (token * heads + args.head) * rows.depth, rows.depth,
              ws.query + q * rows.depth);
    ws.visible[q] = static_cast<std::int32_t>(visible_rows(
        call.query_position + static_cast<std::int64_t>(token), call.key_position, call.keys));
  }
  const auto seen = static_cast<std::size_t>(ws.visible[rows.count - 1]);
  const std::size_t stride = heads * (nope + width);
  const auto between = []() HWY_ATTR {};
  for (std::size_t block = 0; block * kBlockRows < seen; ++block) {
    const std::size_t key = block * kBlockRows;
    const std::size_t block_rows = std::min(kBlockRows, seen - key);
    const float* kv = call.kv + key * stride + args.head * (nope + width);
    unpack_keys(kv, stride, block_rows, nope, ws.keys);
    unpack_keys(call.k_pe + key * rope, rope, block_rows, rope, ws.keys + nope * kBlockRows);
    unpack_values(kv + nope, stride, block_rows, width, ws.values);
    add_block(rows, ws, block, UnpackedBlock<decltype(between)>{rows, ws, between});
  }
  for (std::size_t q = 0; q < rows.count; ++q) {
    float* record = call.states + (args.token_begin + q) * heads * (width + 1);
    finish_row<float>(rows, ws, q, record + args.head * width, record + heads * width + args.head);
  }
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
