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

#include "core/interface/visible_rows.h"
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

/// Adds one block with unpacked keys and values to the query rows that see any of it. `between` is
/// called before each panel of a product.
template <class Between>
HWY_INLINE void add_block(const QueryRows& rows, const AttendWorkspace& ws, std::size_t block,
                          const Between& between) {
  const auto block_begin = static_cast<std::int32_t>(block * kBlockRows);
  const auto seen = [&](std::size_t q) HWY_ATTR {
    return static_cast<std::size_t>(std::clamp<std::int32_t>(
        ws.visible[q] - block_begin, 0, static_cast<std::int32_t>(kBlockRows)));
  };
  std::size_t begin = 0;
  while (begin < rows.count && seen(begin) == 0) ++begin;

  for (std::size_t k = 0; k < rows.depth; k += kPanelDepth) {
    const float* query = ws.query + begin * rows.depth + k;
    const F32Block keys{ws.keys + k * kBlockRows};
    float* scores = ws.scores + begin * kBlockRows;
    const std::size_t depth = std::min(kPanelDepth, rows.depth - k);
    between();
    if (k == 0) {
      panel_product<Finish::kStore>(query, rows.depth, rows.count - begin, keys, depth, scores,
                                    kBlockRows, nullptr);
    } else {
      panel_product<Finish::kAdd>(query, rows.depth, rows.count - begin, keys, depth, scores,
                                  kBlockRows, nullptr);
    }
  }
  weigh_block(ws, rows.softmax_scale, begin, rows.count, block == 0, seen);

  // Runs of query rows that see the same number of rows: all of them, except in a sequence's last
  // blocks. Only the rows that see a value read it.
  const std::size_t output_stride = round_up(rows.width, kPanel);
  for (std::size_t run = begin; run < rows.count;) {
    const std::size_t depth = seen(run);
    std::size_t run_end = run + 1;
    while (run_end < rows.count && seen(run_end) == depth) ++run_end;
    const float* weights = ws.scores + run * kBlockRows;
    for (std::size_t c = 0; c < rows.width; c += kPanel) {
      const F32Block values{ws.values + c * kBlockRows};
      float* output = ws.output + run * output_stride + c;
      between();
      if (block == 0) {
        panel_product<Finish::kStore>(weights, kBlockRows, run_end - run, values, depth, output,
                                      output_stride, nullptr);
      } else {
        panel_product<Finish::kScaleAdd>(weights, kBlockRows, run_end - run, values, depth, output,
                                         output_stride, ws.rescale + run);
      }
    }
    run = run_end;
  }
}

/// o[width] and lse of query row q.
HWY_INLINE void finish_row(const QueryRows& rows, const AttendWorkspace& ws, std::size_t q,
                           float* HWY_RESTRICT o, float* HWY_RESTRICT lse) {
  const F32 d;
  if (ws.visible[q] == 0) {
    std::fill_n(o, rows.width, 0.0F);
    *lse = kMinusInfinity;
    return;
  }
  const float* sums = ws.output + q * round_up(rows.width, kPanel);
  const auto weights = hn::Set(d, ws.sum[q]);
  std::size_t c = 0;
  for (; c + hn::Lanes(d) <= rows.width; c += hn::Lanes(d)) {
    hn::StoreU(hn::Div(hn::Load(d, sums + c), weights), d, o + c);
  }
  for (; c < rows.width; ++c) o[c] = sums[c] / ws.sum[q];
  *lse = ws.max[q] + hn::GetLane(log_positive(d, weights));
}

template <typename T>
HWY_INLINE void unpack_leaf_block(const LeafKernelArgs& args, const AttendWorkspace& ws,
                                  std::size_t block, std::size_t rows) {
  const auto* page = reinterpret_cast<const T*>(
      args.layer + static_cast<std::size_t>(args.pages[block]) * args.page_bytes);
  const std::size_t stride = args.row_bytes / sizeof(T);
  unpack_keys(page, stride, rows, args.latent_dim, ws.keys);
  unpack_values(page, stride, rows, args.kv_lora_rank, ws.values);
}

inline void attend_leaf(const LeafKernelArgs& args, const AttendWorkspace& ws) {
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
    float* query = ws.query + token * heads * args.latent_dim;
    if (args.query_dtype == DType::kF32) {
      widen_row(reinterpret_cast<const float*>(record) + first, heads * args.latent_dim, query);
    } else {
      widen_row(reinterpret_cast<const bf16*>(record) + first, heads * args.latent_dim, query);
    }
    std::fill_n(ws.visible + token * heads, heads,
                visible_rows(task, static_cast<std::int32_t>(token)));
  }
  const auto seen = static_cast<std::size_t>(ws.visible[rows.count - 1]);
  for (std::size_t block = 0; block * kBlockRows < seen; ++block) {
    const std::size_t block_rows = std::min(kBlockRows, seen - block * kBlockRows);
    if (args.gather != nullptr) {
      args.gather->begin_block(block * kBlockRows,
                               ceil_div(rows.depth, kPanelDepth) + ceil_div(rows.width, kPanel));
    }
    if (args.row_format == RowFormat::kF32) {
      unpack_leaf_block<float>(args, ws, block, block_rows);
    } else {
      unpack_leaf_block<bf16>(args, ws, block, block_rows);
    }
    add_block(rows, ws, block, [&]() HWY_ATTR {
      if (args.gather != nullptr) args.gather->request(args.gather->advance(1));
    });
  }
  for (std::size_t q = 0; q < rows.count; ++q) {
    const std::size_t head = args.head_begin + q % heads;
    float* record = args.states + (q / heads) * args.heads * (args.kv_lora_rank + 1);
    finish_row(rows, ws, q, record + head * args.kv_lora_rank,
               record + args.heads * args.kv_lora_rank + head);
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
  for (std::size_t block = 0; block * kBlockRows < seen; ++block) {
    const std::size_t key = block * kBlockRows;
    const std::size_t block_rows = std::min(kBlockRows, seen - key);
    const float* kv = call.kv + key * stride + args.head * (nope + width);
    unpack_keys(kv, stride, block_rows, nope, ws.keys);
    unpack_keys(call.k_pe + key * rope, rope, block_rows, rope, ws.keys + nope * kBlockRows);
    unpack_values(kv + nope, stride, block_rows, width, ws.values);
    add_block(rows, ws, block, []() HWY_ATTR {});
  }
  for (std::size_t q = 0; q < rows.count; ++q) {
    float* record = call.states + (args.token_begin + q) * heads * (width + 1);
    finish_row(rows, ws, q, record + args.head * width, record + heads * width + args.head);
  }
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
