// Which kernel, and how its work is cut: the decisions that need no device.
#include <algorithm>

#include "core/base/error.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/few_rows_shape.h"

namespace tributary::cuda {
namespace {

// From how many heads on 64-row tiles of wgmma do less work than tiles of 16 rows read shared
// memory: at 32 rows the latter still keep up with the memory of an H200, at 48 no more (by count
// of bytes and cycles, to be measured).
constexpr int kManyRowsHeads = 33;

// Rows of a unit of the generic kernel, which takes them one by one: more would only lengthen the
// last unit.
constexpr int kGenericUnitRows = 4;

}  // namespace

AttendKernel choose_kernel(int heads, const CacheLayout& layout, DType query_dtype,
                           int compute_capability) {
  const bool fragments = layout.kv_lora_rank == kLatentRank &&
                         layout.qk_rope_head_dim == kRopeDim && layout.row_dtype == DType::kBF16 &&
                         query_dtype == DType::kBF16;
  if (!fragments || compute_capability < 80) return AttendKernel::kGeneric;
  // wgmma is of sm_90a alone: later architectures do not have it.
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
      // The fewest tiles that take all rows of a task, and else as many as there is room for.
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
      return rows > 64 ? 128 : 64;
  }
  fail(ErrorCode::kInternal, "attend: kernel {}", static_cast<int>(kernel));
}

int attend_parts(AttendKernel kernel, int unit_rows, const DeviceLimits& device) {
  // The generic kernel has little shared memory and many waits: several blocks a multiprocessor.
  if (kernel == AttendKernel::kGeneric) return device.multiprocessors * 8;
  // 128 rows take a cluster of two blocks.
  if (kernel == AttendKernel::kManyRows && unit_rows == 128) return device.multiprocessors / 2;
  return device.multiprocessors;
}

AttendLaunch describe_attend(const AttendArgs& args, const CacheLayout& layout,
                             const DeviceLimits& device) {
  const int most_tokens = std::ranges::max_element(args.tasks, {}, &LeafTask::tokens)->tokens;
  AttendLaunch launch;
  launch.layout = layout;
  launch.queries = args.queries;
  launch.query_stride_bytes = args.query_stride_bytes;
  launch.query_dtype = args.query_dtype;
  launch.heads = args.heads;
  launch.softmax_scale = args.softmax_scale;
  launch.states = args.states;
  launch.kernel = choose_kernel(args.heads, layout, args.query_dtype, device.compute_capability);
  launch.unit_rows = unit_rows(launch.kernel, args.heads, most_tokens, device);
  launch.parts = attend_parts(launch.kernel, launch.unit_rows, device);
  return launch;
}

}  // namespace tributary::cuda
