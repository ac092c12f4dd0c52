// Chooses the kernel and splits its work: the decisions that need no device.
#include <algorithm>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/attend/few_rows_shape.h"

namespace tributary::cuda {
namespace {

// The number of heads from which 64-row tiles of wgmma are faster than 16-row tiles: on an H200,
// 128 sequences of 4096, two of those take 310 us, a tile of wgmma with any number of heads 193,
// one of 16 rows 165.
constexpr int kManyRowsHeads = 17;
/// Rows of a block of the many-rows kernel; a cluster of two has twice as many.
constexpr int kManyRowsOfBlock = 64;

// Rows of a unit of the generic kernel, which computes them one by one: more would only lengthen
// the last unit.
constexpr int kGenericUnitRows = 4;

AttendKernel kernel_of(AttendChoice choice) {
  switch (choice) {
    case AttendChoice::kFew:
      return AttendKernel::kFewRows;
    case AttendChoice::kMany1:
    case AttendChoice::kMany2:
      return AttendKernel::kManyRows;
    default:
      return AttendKernel::kGeneric;
  }
}

}  // namespace

AttendKernel choose_kernel(int heads, const CacheLayout& layout, DType query_dtype,
                           int compute_capability, AttendChoice choice) {
  const bool fragments =
      layout.kv_lora_rank == kLatentRank && layout.qk_rope_head_dim == kRopeDim &&
      row_values(layout.row_format) == DType::kBF16 && query_dtype == DType::kBF16;
  if (choice != AttendChoice::kAuto) {
    const AttendKernel forced = kernel_of(choice);
    const bool device_has_it =
        forced == AttendKernel::kManyRows ? compute_capability == 90 : compute_capability >= 80;
    if (forced != AttendKernel::kGeneric && !(fragments && device_has_it)) {
      fail(ErrorCode::kUnsupported,
           "attend kernel {}: takes rows of {} + {} bf16 or codes and bf16 queries on sm_{}, not "
           "{} + {} {} and {} queries on sm_{}; generic takes all",
           attend_choice_name(choice), kLatentRank, kRopeDim,
           forced == AttendKernel::kManyRows ? "90" : "80 and later", layout.kv_lora_rank,
           layout.qk_rope_head_dim, row_format_name(layout.row_format), dtype_name(query_dtype),
           compute_capability);
    }
    return forced;
  }
  if (!fragments || compute_capability < 80) return AttendKernel::kGeneric;
  // Only sm_90a has wgmma; later architectures do not.
  if (compute_capability == 90 && heads >= kManyRowsHeads) return AttendKernel::kManyRows;
  return AttendKernel::kFewRows;
}

int unit_rows(AttendKernel kernel, int heads, int max_tokens, const DeviceLimits& device) {
  if (heads < 1 || max_tokens < 1 || max_tokens > kMaxStepTokens) {
    fail(ErrorCode::kInvalidArgument,
         "attend: {} heads, {} tokens: at least 1 each, tokens up to {}", heads, max_tokens,
         kMaxStepTokens);
  }
  const int rows = heads * max_tokens;
  switch (kernel) {
    case AttendKernel::kGeneric:
      return kGenericUnitRows;
    case AttendKernel::kFewRows: {
      // The fewest tiles that hold all rows of a task, or, if those do not fit, as many as do.
      int fitting = 0;
      for (const int tiles : kRowTileCounts) {
        if (few_rows_stages(tiles, device.shared_bytes) == 0) break;
        fitting = tiles * 16;
        if (rows <= fitting) break;
      }
      if (fitting == 0) {
        fail(ErrorCode::kUnsupported, "attend: {} bytes of shared memory a block, need {}",
             device.shared_bytes, few_rows_bytes(kRowTileCounts.front(), kFewestStages));
      }
      return fitting;
    }
    case AttendKernel::kManyRows:
      return rows > kManyRowsOfBlock ? 2 * kManyRowsOfBlock : kManyRowsOfBlock;
  }
  fail(ErrorCode::kInternal, "attend: kernel {}", static_cast<int>(kernel));
}

int attend_parts(AttendKernel kernel, int unit_rows, const DeviceLimits& device) {
  // The generic kernel uses little shared memory and waits often: several blocks per
  // multiprocessor.
  if (kernel == AttendKernel::kGeneric) return device.multiprocessors * 8;
  // 128 rows use a cluster of two blocks.
  if (kernel == AttendKernel::kManyRows && unit_rows == 128) return device.multiprocessors / 2;
  return device.multiprocessors;
}

bool merges_leaves(AttendKernel kernel, int unit_rows) {
  return kernel == AttendKernel::kManyRows ||
         (kernel == AttendKernel::kFewRows && unit_rows <= kMostMergedRows);
}

AttendLaunch describe_attend(const AttendArgs& args, const CacheLayout& layout,
                             const DeviceLimits& device, AttendChoice choice, bool fast_order) {
  const int most_tokens = std::ranges::max_element(args.tasks, {}, &LeafTask::tokens)->tokens;
  AttendLaunch launch;
  launch.layout = layout;
  launch.queries = args.queries;
  launch.query_stride_bytes = args.query_stride_bytes;
  launch.query_dtype = args.query_dtype;
  launch.heads = args.heads;
  launch.softmax_scale = args.softmax_scale;
  launch.states = args.states;
  launch.selected = args.selected;
  launch.kernel =
      choose_kernel(args.heads, layout, args.query_dtype, device.compute_capability, choice);
  // Blocks copy selected rows, and widen codes, for themselves alone.
  const bool row_by_row = args.selected.most != 0 || holds_codes(layout.row_format);
  const bool single =
      choice == AttendChoice::kMany1 || (launch.kernel == AttendKernel::kManyRows && row_by_row);
  launch.unit_rows = single ? kManyRowsOfBlock
                     : choice == AttendChoice::kMany2
                         ? 2 * kManyRowsOfBlock
                         : unit_rows(launch.kernel, args.heads, most_tokens, device);
  std::int64_t units = 0;
  for (const LeafTask& task : args.tasks) {
    units += ceil_div(task.tokens * args.heads, launch.unit_rows);
  }
  if (launch.kernel == AttendKernel::kFewRows) {
    const int tiles = launch.unit_rows / 16;
    // The fast order has a piece for every part.
    const bool fills_more = fast_order || units > device.multiprocessors;
    launch.blocks = fills_more ? few_rows_blocks(tiles, device.shared_bytes) : 1;
    launch.stages = few_rows_stages(tiles, device.shared_bytes, launch.blocks);
  }
  launch.parts = attend_parts(launch.kernel, launch.unit_rows, device) * launch.blocks;
  return launch;
}

}  // namespace tributary::cuda

namespace tributary {

std::string_view attend_choice_name(AttendChoice choice) noexcept {
  switch (choice) {
    case AttendChoice::kGeneric:
      return "generic";
    case AttendChoice::kFew:
      return "few";
    case AttendChoice::kMany1:
      return "many1";
    case AttendChoice::kMany2:
      return "many2";
    default:
      return "auto";
  }
}

AttendChoice parse_attend_choice(std::string_view name) {
  for (const AttendChoice choice : kAttendChoices) {
    if (attend_choice_name(choice) == name) return choice;
  }
  fail(ErrorCode::kInvalidArgument,
       "attend kernel is '{}', expected auto, generic, few, many1 or many2", name);
}

}  // namespace tributary
