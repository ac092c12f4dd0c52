// Attention over leaves and the merge of partial states on a CUDA device: what the CUDA backend
// calls, and what its kernels are told. Needs no CUDA header, so that the schedule and the tests of
// the kernels' arithmetic build without a toolkit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"

struct CUstream_st;     // cudaStream_t is CUstream_st*
struct CUtensorMap_st;  // CUtensorMap

namespace tributary::cuda {

/// Which arithmetic computes a leaf. Chosen from the heads and the shape alone, so that neither
/// `s_q` nor the batch changes a bit.
enum class AttendKernel : std::uint8_t {
  kGeneric,   // any latent widths, bf16 or fp32, fp32 FMA
  kFewRows,   // sm_80 and later: 512 + 64, bf16; mma.sync in tiles of 16 rows
  kManyRows,  // sm_90: 512 + 64, bf16; wgmma in tiles of 64 rows
};

/// What the choice and the launch need to know of a device.
struct DeviceLimits {
  int compute_capability = 0;  // 80, 86, 90, ...
  int multiprocessors = 0;
  std::size_t shared_bytes = 0;  // of a block, at most (cudaDevAttrMaxSharedMemoryPerBlockOptin)
};

[[nodiscard]] AttendKernel choose_kernel(int heads, const CacheLayout& layout, DType query_dtype,
                                         int compute_capability);

/// A row is one (token, head) of a task: row = token * heads + head.
/// Rows that one unit of work takes at most, where no task has more than `max_tokens` tokens; no
/// result's bits depend on it.
[[nodiscard]] int unit_rows(AttendKernel kernel, int heads, int max_tokens,
                            const DeviceLimits& device);

/// Parts of the persistent grid: blocks, or clusters of blocks where a unit takes a cluster.
[[nodiscard]] int attend_parts(AttendKernel kernel, int unit_rows, const DeviceLimits& device);

/// Rows [first_row, first_row + unit_rows) of a task, less where the task ends.
struct WorkUnit {
  std::int32_t task = 0;
  std::int32_t first_row = 0;
  friend bool operator==(const WorkUnit&, const WorkUnit&) = default;
};

/// Part p computes units[part_begin[p]] to units[part_begin[p + 1] - 1], in this order.
struct AttendSchedule {
  std::vector<std::int32_t> part_begin;  // [parts + 1]
  std::vector<WorkUnit> units;           // [number of units]
};

/// Whole leaves, balanced over the parts by cost: the longest first, each to the part with least to
/// do. Throws kInvalidArgument. O(n log n) for n units.
[[nodiscard]] AttendSchedule schedule_attend(std::span<const LeafTask> tasks, int heads,
                                             int unit_rows, int parts);

/// The schedule of the last plan is kept: a step's plan is the same at each of its layers.
class CanonicalOrder {
 public:
  /// schedule_attend() of the arguments' tasks and heads.
  [[nodiscard]] const AttendSchedule& schedule(const AttendArgs& args, int unit_rows, int parts);

 private:
  std::vector<LeafTask> tasks_;
  std::array<int, 3> rest_{};  // heads, unit_rows, parts
  AttendSchedule schedule_;
};

/// Records from this index on lie in a launch's own `scratch`, not in `states`.
inline constexpr std::int64_t kScratchRecord = std::int64_t{1} << 56;

/// Everything that a launch may read, plain data; all pointers are device pointers. What changes
/// from step to step is device data, so that a captured launch can be replayed.
struct AttendLaunch {
  const LeafTask* tasks = nullptr;
  const std::int32_t* part_begin = nullptr;   // [parts + 1]
  const WorkUnit* units = nullptr;            // [part_begin[parts]]
  const std::int32_t* block_table = nullptr;  // page numbers
  const std::int32_t* item_layer = nullptr;
  const std::byte* cache = nullptr;  // [layer][page][kPageTokens][latent_dim], layout.row_dtype;
                                     // aligned to 128 bytes
  CacheLayout layout;
  const std::byte* queries = nullptr;  // [heads][latent_dim] of record r at r * query_stride_bytes
  std::size_t query_stride_bytes = 0;
  DType query_dtype = DType::kBF16;
  int heads = 0;
  float softmax_scale = 0;
  float* states = nullptr;   // records of StateShape{heads, kv_lora_rank}
  float* scratch = nullptr;  // likewise; null where no record is of scratch
  int unit_rows = 0;         // as the schedule was made for
  int parts = 0;             // blocks or clusters of the grid
  AttendKernel kernel = AttendKernel::kGeneric;
  /// kManyRows alone, host pointer: the cache as rows [layers * pages * kPageTokens, latent_dim].
  /// Copied into the launch.
  const CUtensorMap_st* cache_map = nullptr;
  friend bool operator==(const AttendLaunch&, const AttendLaunch&) = default;
};

/// What the arguments, of one task at least, and the device decide of a launch: all but the cache's
/// and the plan's addresses.
[[nodiscard]] AttendLaunch describe_attend(const AttendArgs& args, const CacheLayout& layout,
                                           const DeviceLimits& device);

/// Enqueues; throws kInternal with CUDA's words when the launch is refused. Arguments were checked
/// by the backend (kernels/validate.h).
void attend(const AttendLaunch& launch, CUstream_st* stream);

/// Loads the kernels that attend() and merge() launch on the current device, an `AttendKernel` that
/// it cannot run left out: a driver loads a kernel when it is first launched, and may wait for all
/// other work then.
void load_attend(const DeviceLimits& device);
void load_many_rows();

/// What attend() calls for kManyRows (kernels/cuda/sm90).
void attend_many_rows(const AttendLaunch& launch, CUstream_st* stream);

/// An op of 0 tokens does nothing, so that a captured launch can be padded.
struct MergeLaunch {
  const MergeOp* ops = nullptr;  // device memory, [count]
  int count = 0;
  int heads = 0;
  int width = 0;
  float* states = nullptr;
  float* scratch = nullptr;  // records from kScratchRecord on; may be null
  friend bool operator==(const MergeLaunch&, const MergeLaunch&) = default;
};
void merge(const MergeLaunch& launch, CUstream_st* stream);

}  // namespace tributary::cuda
