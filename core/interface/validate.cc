// Checks of argument structs, one function each.
#include "core/interface/validate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <variant>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "core/base/error.h"

namespace tributary {
namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
// Far above any model, far below what could overflow an index.
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxMergeLevels = 48;  // a tree over kIndexBound states

// low <= value <= high.
void check_range(std::string_view op, std::string_view what, std::int64_t value, std::int64_t low,
                 std::int64_t high) {
  if (value < low || value > high) {
    fail(kBad, "{}: {} is {}, must be {} to {}", op, what, value, low, high);
  }
}

void check_pointer(std::string_view op, std::string_view what, const void* pointer,
                   std::size_t alignment) {
  if (pointer == nullptr) fail(kBad, "{}: {} is null", op, what);
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    fail(kBad, "{}: {} is not aligned to {} bytes", op, what, alignment);
  }
}

void check_float_type(std::string_view op, std::string_view what, DType type) {
  if (type != DType::kF32 && type != DType::kBF16) {
    fail(kBad, "{}: {} is {}, must be f32 or bf16", op, what, dtype_name(type));
  }
}

// A stride, in elements, between rows of `width` elements that are written: they must not overlap.
void check_write_stride(std::string_view op, std::string_view what, std::int64_t count,
                        std::int64_t stride, std::int64_t width) {
  if (count > 1) check_range(op, what, stride, width, kIndexBound);
}

// A stride between rows that are only read: they may repeat.
void check_read_stride(std::string_view op, std::string_view what, std::int64_t count,
                       std::int64_t stride) {
  if (count > 1) check_range(op, what, stride, 0, kIndexBound);
}

void check_byte_stride(std::string_view op, std::string_view what, std::size_t stride,
                       std::size_t low, std::size_t element) {
  if (stride < low || stride % element != 0) {
    fail(kBad, "{}: {} is {}, must be a multiple of {} and at least {}", op, what, stride, element,
         low);
  }
}

// The alignment of a row's address. Where a row is only its values, they are read one by one.
std::size_t row_alignment(const RowLayout& row) {
  const auto elements = plain_elements(row.format);
  return elements ? dtype_bytes(*elements) : 1;
}

// The layer of an item of a call.
void check_item(std::string_view op, std::span<const std::int32_t> item_layer, std::int32_t item,
                int layers) {
  check_range(op, "item", item, 0, static_cast<std::int64_t>(item_layer.size()) - 1);
  check_range(op, "layer", item_layer[static_cast<std::size_t>(item)], 0, layers - 1);
}

const CacheLayout& checked_layout(std::string_view op, const Cache* cache) {
  if (cache == nullptr) fail(kBad, "{}: cache is null", op);
  return cache->layout();
}

void check(const AppendArgs& args) {
  if (args.empty()) return;
  const CacheLayout& layout = checked_layout("append", args.cache);
  check_pointer("append", "source", args.source, 1);
  check_byte_stride("append", "source_stride_bytes", args.source_stride_bytes, layout.row_bytes(),
                    1);
  for (const AppendTask& task : args.tasks) {
    check_item("append", args.item_layer, task.item, layout.layers);
    check_range("append", "page", task.page, 0, layout.pages - 1);
    check_range("append", "slot", task.slot, 0, kPageTokens - 1);
    check_range("append", "source record", task.source, 0, kIndexBound);
  }
}

void check(const SelectedRows& selected) {
  check_range("attend", "selected.most", selected.most, 1, INT32_MAX);
  check_pointer("attend", "selected.data", selected.data, alignof(std::int32_t));
  check_byte_stride("attend", "selected.stride_bytes", selected.stride_bytes,
                    static_cast<std::size_t>(selected.most) * sizeof(std::int32_t),
                    sizeof(std::int32_t));
}

void check(const AttendArgs& args) {
  if (args.empty()) return;
  const CacheLayout& layout = checked_layout("attend", args.cache);
  check_range("attend", "heads", args.heads, 1, kMaxWidth);
  if (!std::isfinite(args.softmax_scale) || args.softmax_scale <= 0) {
    fail(kBad, "attend: softmax_scale is {}, must be positive and finite", args.softmax_scale);
  }
  check_float_type("attend", "query_dtype", args.query_dtype);
  const std::size_t element = dtype_bytes(args.query_dtype);
  check_pointer("attend", "queries", args.queries, element);
  check_byte_stride("attend", "query_stride_bytes", args.query_stride_bytes,
                    static_cast<std::size_t>(args.heads) *
                        static_cast<std::size_t>(layout.latent_dim()) * element,
                    element);
  check_pointer("attend", "states", args.states, alignof(float));
  const bool sparse = args.selected != SelectedRows{};
  if (sparse) check(args.selected);
  // A list holds positions of 32 bits.
  const std::int64_t most_begin = sparse ? INT32_MAX : kIndexBound;
  const auto table_size = static_cast<std::int64_t>(args.block_table.size());
  for (const LeafTask& task : args.tasks) {
    check_item("attend", args.item_layer, task.item, layout.layers);
    check_range("attend", "tokens", task.tokens, 1, kMaxStepTokens);
    check_range("attend", "rows", task.rows, 1, INT32_MAX - kPageTokens);
    check_range("attend", "leaf_begin", task.leaf_begin, 0, most_begin);
    check_range("attend", "query_position", task.query_position, 0, kIndexBound);
    check_range("attend", "query record", task.query, 0, kIndexBound);
    check_range("attend", "state record", task.state, 0, kIndexBound);
    const std::int64_t pages = ceil_div(task.rows, kPageTokens);
    check_range("attend", "first_page", task.first_page, 0, table_size - pages);
    for (const std::int32_t page : args.block_table.subspan(
             static_cast<std::size_t>(task.first_page), static_cast<std::size_t>(pages))) {
      check_range("attend", "page", page, 0, layout.pages - 1);
    }
  }
}

void check(const MergeArgs& args) {
  if (args.empty()) return;
  check_range("merge", "heads", args.shape.heads, 1, kMaxWidth);
  check_range("merge", "width", args.shape.width, 1, kMaxWidth);
  check_pointer("merge", "states", args.states, alignof(float));
  check_range("merge", "levels", args.levels, 1, kMaxMergeLevels);
  std::int32_t level = 0;
  for (const MergeOp& op : args.ops) {
    check_range("merge", "level", op.level, level, args.levels - 1);  // by level
    level = op.level;
    check_range("merge", "tokens", op.tokens, 1, INT32_MAX);
    check_range("merge", "dst", op.dst, 0, kIndexBound);
    check_range("merge", "left", op.left, 0, kIndexBound);
    check_range("merge", "right", op.right, kNoState, kIndexBound);
    // Records are merged one by one in any order: ranges may be equal but must not be shifted.
    for (const std::int64_t source : {op.left, op.right}) {
      const bool shifted = source != op.dst && source < op.dst + op.tokens &&
                           op.dst < source + op.tokens && source != kNoState;
      if (shifted) {
        fail(kBad, "merge: {} records to {} overlap those from {}", op.tokens, op.dst, source);
      }
    }
  }
}

void check(const AttendMergeArgs& args) {
  check(args.attend);
  check(args.merge);
  if (args.attend.empty() || args.merge.empty()) return;
  const StateShape shape{args.attend.heads, args.attend.cache->layout().kv_lora_rank};
  if (args.merge.shape != shape || args.merge.states != args.attend.states) {
    fail(kBad, "attend_merge: states of {} heads x {}, merged must be the same as those attended",
         args.merge.shape.heads, args.merge.shape.width);
  }
}

void check(const GatherArgs& args) {
  if (args.empty()) return;
  check_pointer("gather", "src", args.src, 1);
  check_pointer("gather", "dst", args.dst, 1);
  check_byte_stride("gather", "record_bytes", args.record_bytes, 1, 1);
  for (const std::int64_t record : args.index) {
    check_range("gather", "index", record, 0, kIndexBound);
  }
}

void check(const GemmArgs& args) {
  if (args.weight == nullptr) fail(kBad, "gemm: weight is null");
  check_range("gemm", "tokens", args.tokens, 0, INT32_MAX);
  if (args.empty()) return;
  const std::int64_t batch = args.weight->batch();
  check_pointer("gemm", "x", args.x, alignof(float));
  check_pointer("gemm", "y", args.y, alignof(float));
  check_read_stride("gemm", "x_token_stride", args.tokens, args.x_token_stride);
  check_read_stride("gemm", "x_batch_stride", batch, args.x_batch_stride);
  check_write_stride("gemm", "y_token_stride", args.tokens, args.y_token_stride,
                     args.weight->rows());
  check_write_stride("gemm", "y_batch_stride", batch, args.y_batch_stride, args.weight->rows());
}

void check(const RmsNormArgs& args) {
  check_range("rms_norm", "tokens", args.tokens, 0, INT32_MAX);
  if (args.empty()) return;
  check_range("rms_norm", "width", args.width, 1, INT32_MAX);
  check_pointer("rms_norm", "x", args.x, alignof(float));
  check_pointer("rms_norm", "weight", args.weight, alignof(float));
  check_pointer("rms_norm", "y", args.y, alignof(float));
  if (!std::isfinite(args.eps) || args.eps < 0) {
    fail(kBad, "rms_norm: eps is {}, must be finite and not negative", args.eps);
  }
  check_read_stride("rms_norm", "x_token_stride", args.tokens, args.x_token_stride);
  check_write_stride("rms_norm", "y_token_stride", args.tokens, args.y_token_stride, args.width);
}

void check(const RopeArgs& args) {
  if (args.empty()) return;
  const auto tokens = static_cast<std::int64_t>(args.positions.size());
  const auto dim = 2 * static_cast<std::int64_t>(args.frequencies.size());
  check_range("rope", "dim", dim, 2, kMaxWidth);
  check_range("rope", "heads", args.heads, 1, kMaxWidth);
  check_pointer("rope", "x", args.x, alignof(float));
  check_pointer("rope", "y", args.y, alignof(float));
  check_read_stride("rope", "x_token_stride", tokens, args.x_token_stride);
  check_read_stride("rope", "x_head_stride", args.heads, args.x_head_stride);
  check_write_stride("rope", "y_token_stride", tokens, args.y_token_stride, dim);
  check_write_stride("rope", "y_head_stride", args.heads, args.y_head_stride, dim);
  for (const std::int64_t position : args.positions) {
    check_range("rope", "position", position, 0, kIndexBound);
  }
}

void check(const LatentRowsArgs& args) {
  check(args.norm);
  check(args.rope);
  const auto tokens = static_cast<std::int64_t>(args.rope.positions.size());
  check_range("latent_rows", "norm.tokens", args.norm.tokens, tokens, tokens);
  if (tokens > 0) check_range("latent_rows", "rope.heads", args.rope.heads, 1, 1);
}

void check(const ConvertArgs& args) {
  check_range("convert", "rows", args.rows, 0, kIndexBound);
  if (args.empty()) return;
  const RowLayout& src = args.src_row;
  const RowLayout& dst = args.dst_row;
  check_row_layout(src);
  check_row_layout(dst);
  const auto values = static_cast<std::int64_t>(src.values());
  check_range("convert", "dst_row.values", static_cast<std::int64_t>(dst.values()), values, values);
  if (src.format != RowFormat::kF32 && dst.format != RowFormat::kF32 && src != dst) {
    fail(kBad, "convert: rows of {} to rows of {}, one must be f32", row_format_name(src.format),
         row_format_name(dst.format));
  }
  check_pointer("convert", "src", args.src, row_alignment(src));
  check_pointer("convert", "dst", args.dst, row_alignment(dst));
  if (args.rows == 1) return;
  check_byte_stride("convert", "src_stride_bytes", args.src_stride_bytes, 0, row_alignment(src));
  check_byte_stride("convert", "dst_stride_bytes", args.dst_stride_bytes, dst.bytes(),
                    row_alignment(dst));
}

void check(const DenseAttendArgs& args) {
  check_range("attend_dense", "tokens", args.tokens, 0, INT32_MAX);
  check_range("attend_dense", "keys", args.keys, 0, INT32_MAX);
  if (args.empty()) return;
  check_range("attend_dense", "heads", args.heads, 1, kMaxWidth);
  check_range("attend_dense", "qk_nope_head_dim", args.qk_nope_head_dim, 0, kMaxWidth);
  check_range("attend_dense", "qk_rope_head_dim", args.qk_rope_head_dim, 0, kMaxWidth);
  check_range("attend_dense", "qk_head_dim", args.qk_nope_head_dim + args.qk_rope_head_dim, 1,
              2 * kMaxWidth);
  check_range("attend_dense", "v_head_dim", args.v_head_dim, 1, kMaxWidth);
  check_range("attend_dense", "query_position", args.query_position, 0, kIndexBound);
  check_range("attend_dense", "key_position", args.key_position, 0, kIndexBound);
  if (!std::isfinite(args.softmax_scale) || args.softmax_scale <= 0) {
    fail(kBad, "attend_dense: softmax_scale is {}, must be positive and finite",
         args.softmax_scale);
  }
  check_pointer("attend_dense", "q", args.q, alignof(float));
  check_pointer("attend_dense", "states", args.states, alignof(float));
  if (args.keys == 0) return;
  check_pointer("attend_dense", "kv", args.kv, alignof(float));
  if (args.qk_rope_head_dim > 0) check_pointer("attend_dense", "k_pe", args.k_pe, alignof(float));
}

}  // namespace

void check_call(const Call& call) {
  std::visit([](const auto& args) { check(args); }, call);
}

void check_layout(const CacheLayout& layout, std::string_view backend,
                  std::span<const RowFormat> formats) {
  check_range("cache", "layers", layout.layers, 1, kMaxWidth);
  check_range("cache", "pages", layout.pages, 1, INT32_MAX);
  check_range("cache", "kv_lora_rank", layout.kv_lora_rank, 1, kMaxWidth);
  check_range("cache", "qk_rope_head_dim", layout.qk_rope_head_dim, 0, kMaxWidth);
  check_row_layout(layout.row());
  check_row_format(layout.row_format, backend, formats);
}

void check_row_format(RowFormat format, std::string_view backend,
                      std::span<const RowFormat> formats) {
  if (std::ranges::count(formats, format.id, &RowFormat::id) == 0) {
    fail(ErrorCode::kUnsupported, "backend {} has kernels for rows of {}, not of {}", backend,
         row_format_names(formats, " or "), row_format_name(format));
  }
}

void check_weight(const WeightView& view) {
  check_float_type("weight", "dtype", view.dtype);
  check_pointer("weight", "data", view.data, dtype_bytes(view.dtype));
  check_range("weight", "batch", view.batch, 1, kMaxWidth);
  check_range("weight", "rows", view.rows, 1, INT32_MAX);
  check_range("weight", "cols", view.cols, 1, INT32_MAX);
  // The product of two 31-bit numbers cannot overflow; that of all three could.
  check_range("weight", "batch (of batch x rows x cols)", view.batch, 1,
              std::max<std::int64_t>(0, kIndexBound / (view.rows * view.cols)));
  check_read_stride("weight", "batch_stride", view.batch, view.batch_stride);
  check_read_stride("weight", "row_stride", view.rows, view.row_stride);
  check_read_stride("weight", "col_stride", view.cols, view.col_stride);
  if (view.scales.data == nullptr) return;
  if (view.dtype != DType::kF32) {
    fail(kBad, "weight: dtype is {}, must be f32 beside block scales", dtype_name(view.dtype));
  }
  check_pointer("weight", "scales.data", view.scales.data, sizeof(float));
  check_range("weight", "scales.cols", view.scales.cols, 1, INT32_MAX);
  check_range("weight", "scales.first", view.scales.first, 0, kIndexBound);
}

void check_page(const CacheLayout& layout, std::string_view call, int layer, std::int32_t page) {
  check_range(call, "layer", layer, 0, layout.layers - 1);
  check_range(call, "page", page, 0, layout.pages - 1);
}

void check_rows(const CacheLayout& layout, std::string_view call, int layer, std::int32_t page,
                std::int32_t slot, std::size_t bytes) {
  check_page(layout, call, layer, page);
  check_range(call, "slot", slot, 0, kPageTokens - 1);
  const std::size_t row_bytes = layout.row_bytes();
  const auto room = static_cast<std::size_t>(kPageTokens - slot) * row_bytes;
  if (bytes % row_bytes != 0 || bytes > room) {
    fail(kBad, "{}: {} bytes from slot {} on, must be whole rows of {} and at most {}", call, bytes,
         slot, row_bytes, room);
  }
}

// The factors of a valid layout are 31-bit numbers, so that only their product can overflow.
std::size_t cache_bytes(const CacheLayout& layout) {
  const auto pages =
      static_cast<std::size_t>(layout.layers) * static_cast<std::size_t>(layout.pages);
  const std::size_t page_bytes = static_cast<std::size_t>(kPageTokens) * layout.row_bytes();
  if (pages > std::numeric_limits<std::ptrdiff_t>::max() / page_bytes) {
    fail(ErrorCode::kPoolFull, "cache of {} layers x {} pages x {} bytes exceeds the address space",
         layout.layers, layout.pages, page_bytes);
  }
  return pages * page_bytes;
}

}  // namespace tributary
