// The calls of a backend as data: one struct for each operation, and a variant of them. A call can
// be made, recorded, compared, and passed on by a wrapper without a second copy of its fields.
//
// One more operation is a struct here, with the members that all of them have, a member of `Call`,
// and its check in validate.cc; then the backends' own arithmetic.
//
// Pointers are device pointers of the backend that is called, `PlanData` is host memory. Strides
// that are not in bytes are in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>

#include "core/base/dtype.h"
#include "core/model/row_format.h"
#include "core/model/state_shape.h"

namespace tributary {

class Cache;
class Weight;

/// Positions, record indices and strides stay below this, so that sums of two cannot overflow.
inline constexpr std::int64_t kIndexBound = std::int64_t{1} << 48;

/// Data that the host plans for a call: read while the call is made or recorded. Each replay of a
/// recording may have its own, so plan data does not tell calls apart: it always compares equal.
template <typename T>
class PlanData : public std::span<const T> {
 public:
  // NOLINTNEXTLINE(modernize-use-equals-default): of clang-tidy 14, for what is inherited.
  using std::span<const T>::span;
  constexpr PlanData() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor): as a span converts from a span.
  constexpr PlanData(std::span<const T> data) noexcept : std::span<const T>(data) {}
  friend constexpr bool operator==(const PlanData&, const PlanData&) noexcept { return true; }
};

// All structs have these members: kName; empty(), whether there is nothing to do; memory(),
// references to all plan data and device pointers; and equality, which ignores plan data.

/// One latent row to store: source record -> slot of a page.
struct AppendTask {
  std::int32_t item = 0;    // index into AppendArgs::item_layer
  std::int32_t page = 0;    // 0 <= page < layout.pages
  std::int32_t slot = 0;    // 0 <= slot < kPageTokens
  std::int64_t source = 0;  // record index
};

struct AppendArgs {
  Cache* cache = nullptr;
  PlanData<AppendTask> tasks = {};
  PlanData<std::int32_t> item_layer = {};
  const std::byte* source = nullptr;    // row of record r at source + r * source_stride_bytes
  std::size_t source_stride_bytes = 0;  // rows are in the cache's format, layout.row_bytes()

  static constexpr std::string_view kName = "append";
  [[nodiscard]] bool empty() const noexcept { return tasks.empty(); }
  [[nodiscard]] auto memory() noexcept { return std::tie(tasks, item_layer, source); }
  friend bool operator==(const AppendArgs&, const AppendArgs&) = default;
};

/// Attention of one item's new tokens over the rows of one leaf.
/// Token i (0 <= i < tokens) sees the first clamp(query_position + i + 1 - leaf_begin, 0, rows)
/// rows of the leaf; none gives the empty state. Memory beyond `rows` is never read as a value.
struct LeafTask {
  std::int32_t item = 0;            // index into AttendArgs::item_layer
  std::int32_t tokens = 0;          // 1 .. kMaxStepTokens
  std::int32_t rows = 0;            // rows of the leaf that exist, >= 1
  std::int32_t first_page = 0;      // index into block_table of the leaf's first page
  std::int64_t leaf_begin = 0;      // global position of the leaf's first row
  std::int64_t query_position = 0;  // global position of the first token
  std::int64_t query = 0;           // record index of the first token's query
  std::int64_t state = 0;           // record index where the first token's state goes
  friend bool operator==(const LeafTask&, const LeafTask&) = default;
};

/// The rows that query tokens attend to, in device memory. The list of query record r is at data +
/// r * stride_bytes: global positions in ascending order, -1 behind the last. Of a list, rows that
/// the token does not see do not count. The host does not read the lists; whoever makes the call
/// knows that they are in order.
struct SelectedRows {
  const std::int32_t* data = nullptr;  // [most]
  std::size_t stride_bytes = 0;        // from one record's list to the next
  std::int32_t most = 0;               // 0: there are no lists, a token attends to all it sees
  friend bool operator==(const SelectedRows&, const SelectedRows&) = default;
};

/// With a selection, a token's state over a leaf is that over a leaf which holds the selected rows
/// of this one alone, in order: blocks are counted in selected rows. None gives the empty state.
struct AttendArgs {
  const Cache* cache = nullptr;
  PlanData<LeafTask> tasks = {};
  PlanData<std::int32_t> block_table = {};  // page numbers
  PlanData<std::int32_t> item_layer = {};
  const std::byte* queries = nullptr;  // query of record r at queries + r * query_stride_bytes:
  std::size_t query_stride_bytes = 0;  // [heads][latent_dim], absorbed part first, then RoPE part
  DType query_dtype = DType::kBF16;    // kBF16 or kF32
  int heads = 0;
  float softmax_scale = 0;
  float* states = nullptr;  // records of StateShape{heads, kv_lora_rank}
  SelectedRows selected = {};

  static constexpr std::string_view kName = "attend";
  [[nodiscard]] bool empty() const noexcept { return tasks.empty(); }
  [[nodiscard]] auto memory() noexcept {
    return std::tie(tasks, block_table, item_layer, queries, states, selected.data);
  }
  friend bool operator==(const AttendArgs&, const AttendArgs&) = default;
};

/// states[dst] = merge(states[left], states[right]) for `tokens` consecutive records;
/// right == kNoState copies left. dst may equal left. Per head, with m = max(lse_l, lse_r) and
/// w = exp(lse - m) of each side: o = (w_l * o_l + w_r * o_r) / (w_l + w_r), lse = m + log(w_l +
/// w_r). An empty side (lse is -inf, +inf or NaN) is skipped.
inline constexpr std::int64_t kNoState = -1;
struct MergeOp {
  std::int64_t dst = 0;
  std::int64_t left = 0;
  std::int64_t right = kNoState;
  std::int32_t tokens = 0;
  std::int32_t level = 0;  // level in a tree of merges; ops of a level are independent of each
                           // other
  friend bool operator==(const MergeOp&, const MergeOp&) = default;
};

/// Merges, or whole trees of them. An op may take the result of an op of a lower level, once and
/// for as many tokens. The taken record is undefined afterwards, unless it is the taker's dst: a
/// backend may keep it in registers. An op's dst is its left or right, or a record that no other op
/// names.
struct MergeArgs {
  PlanData<MergeOp> ops = {};  // by level
  StateShape shape;
  float* states = nullptr;
  int levels = 1;  // all levels are below this; each takes at most one launch

  static constexpr std::string_view kName = "merge";
  [[nodiscard]] bool empty() const noexcept { return ops.empty(); }
  [[nodiscard]] auto memory() noexcept { return std::tie(ops, states); }
  friend bool operator==(const MergeArgs&, const MergeArgs&) = default;
};

/// Attention and the merges of its states, in one call: a backend may merge a leaf's state before
/// it leaves the registers. A task's state that an op takes is undefined afterwards, like the
/// result of a lower level.
struct AttendMergeArgs {
  AttendArgs attend;
  MergeArgs merge;  // its records are attend's states, with their shape

  static constexpr std::string_view kName = "attend_merge";
  [[nodiscard]] bool empty() const noexcept { return attend.empty() && merge.empty(); }
  [[nodiscard]] auto memory() noexcept { return std::tuple_cat(attend.memory(), merge.memory()); }
  friend bool operator==(const AttendMergeArgs&, const AttendMergeArgs&) = default;
};

/// dst record i = src record index[i]; record_bytes each.
struct GatherArgs {
  PlanData<std::int64_t> index = {};
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::size_t record_bytes = 0;

  static constexpr std::string_view kName = "gather";
  [[nodiscard]] bool empty() const noexcept { return index.empty(); }
  [[nodiscard]] auto memory() noexcept { return std::tie(index, src, dst); }
  friend bool operator==(const GatherArgs&, const GatherArgs&) = default;
};

/// y[t, b, :] = W[b] x[t, b, :] for every token t and batch index b, fp32 in and out, fp32
/// accumulation at least. A token's result does not depend on the other tokens of the call.
struct GemmArgs {
  const Weight* weight = nullptr;
  std::int64_t tokens = 0;
  const float* x = nullptr;  // [tokens, batch, cols]
  std::int64_t x_token_stride = 0, x_batch_stride = 0;
  float* y = nullptr;  // [tokens, batch, rows]
  std::int64_t y_token_stride = 0, y_batch_stride = 0;

  static constexpr std::string_view kName = "gemm";
  [[nodiscard]] bool empty() const noexcept { return tokens == 0; }
  [[nodiscard]] auto memory() noexcept { return std::tie(x, y); }
  friend bool operator==(const GemmArgs&, const GemmArgs&) = default;
};

/// y = x / sqrt(mean(x^2) + eps) * weight, per token. y may be x.
struct RmsNormArgs {
  std::int64_t tokens = 0;
  std::int64_t width = 0;
  const float* x = nullptr;
  std::int64_t x_token_stride = 0;
  const float* weight = nullptr;  // [width]
  float eps = 0;
  float* y = nullptr;
  std::int64_t y_token_stride = 0;

  static constexpr std::string_view kName = "rms_norm";
  [[nodiscard]] bool empty() const noexcept { return tokens == 0; }
  [[nodiscard]] auto memory() noexcept { return std::tie(x, weight, y); }
  friend bool operator==(const RmsNormArgs&, const RmsNormArgs&) = default;
};

/// Rotates adjacent pairs (2i, 2i + 1) of the last axis by position * frequency[i], angles in
/// double. y may be x.
struct RopeArgs {
  PlanData<std::int64_t> positions = {};  // [tokens]
  PlanData<double> frequencies = {};      // [dim / 2]
  std::int64_t heads = 0;
  const float* x = nullptr;  // [tokens, heads, dim]
  std::int64_t x_token_stride = 0, x_head_stride = 0;
  float* y = nullptr;
  std::int64_t y_token_stride = 0, y_head_stride = 0;

  static constexpr std::string_view kName = "rope";
  [[nodiscard]] bool empty() const noexcept { return positions.empty(); }
  [[nodiscard]] auto memory() noexcept { return std::tie(positions, frequencies, x, y); }
  friend bool operator==(const RopeArgs&, const RopeArgs&) = default;
};

/// Computes new latent rows: RMSNorm of their first part and RoPE of the rest, for the same tokens
/// and one head, with the bits of the two calls. The parts do not overlap.
struct LatentRowsArgs {
  RmsNormArgs norm;
  RopeArgs rope;

  static constexpr std::string_view kName = "latent_rows";
  [[nodiscard]] bool empty() const noexcept { return rope.empty(); }
  [[nodiscard]] auto memory() noexcept { return std::tuple_cat(norm.memory(), rope.memory()); }
  friend bool operator==(const LatentRowsArgs&, const LatentRowsArgs&) = default;
};

/// Converts fp32 values to rows of a format, or back, with the bits of RowLayout::encode and
/// decode. Both layouts have equally many values. Either one of them is kF32, or they are equal and
/// rows are copied. plain_row() describes values that are not a latent row.
struct ConvertArgs {
  std::int64_t rows = 0;
  const void* src = nullptr;
  RowLayout src_row;
  std::size_t src_stride_bytes = 0;  // may be 0
  void* dst = nullptr;
  RowLayout dst_row;
  std::size_t dst_stride_bytes = 0;

  static constexpr std::string_view kName = "convert";
  [[nodiscard]] bool empty() const noexcept { return rows == 0; }
  [[nodiscard]] auto memory() noexcept { return std::tie(src, dst); }
  friend bool operator==(const ConvertArgs&, const ConvertArgs&) = default;
};

/// Attention in the MHA form over one chunk of keys, for prefill. Token t sees the keys whose
/// position key_position + j is at most query_position + t. Its state does not depend on the other
/// tokens of the call, and a key that it does not see counts as absent. Dense, contiguous, fp32.
struct DenseAttendArgs {
  std::int64_t tokens = 0, keys = 0;
  int heads = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  std::int64_t query_position = 0, key_position = 0;
  float softmax_scale = 0;
  const float* q = nullptr;     // [tokens, heads, qk_nope_head_dim + qk_rope_head_dim]
  const float* kv = nullptr;    // [keys, heads, qk_nope_head_dim + v_head_dim]
  const float* k_pe = nullptr;  // [keys, qk_rope_head_dim]
  float* states = nullptr;      // [tokens] records of StateShape{heads, v_head_dim}

  static constexpr std::string_view kName = "attend_dense";
  [[nodiscard]] bool empty() const noexcept { return tokens == 0; }
  [[nodiscard]] auto memory() noexcept { return std::tie(q, kv, k_pe, states); }
  friend bool operator==(const DenseAttendArgs&, const DenseAttendArgs&) = default;
};

using Call = std::variant<AppendArgs, AttendArgs, MergeArgs, AttendMergeArgs, GatherArgs, GemmArgs,
                          RmsNormArgs, RopeArgs, LatentRowsArgs, ConvertArgs, DenseAttendArgs>;

/// `append`, `attend`, ...
[[nodiscard]] inline std::string_view call_name(const Call& call) noexcept {
  return std::visit([](const auto& args) { return args.kName; }, call);
}

/// Calls visit(part) for all plan data and all device pointers of a call.
template <typename Visit>
void visit_memory(Call& call, const Visit& visit) {
  const auto visit_all = [&visit](auto&... parts) { (visit(parts), ...); };
  std::visit([&](auto& args) { std::apply(visit_all, args.memory()); }, call);
}
template <typename Part>
inline constexpr bool kIsPlanData = !std::is_pointer_v<std::remove_cvref_t<Part>>;

}  // namespace tributary
