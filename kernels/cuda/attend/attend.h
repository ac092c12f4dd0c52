// Attention over leaves and the merge of partial states on a CUDA device: the functions that the
// CUDA backend calls, and the arguments of its kernels. Includes no CUDA header, so that the
// schedule and the tests of the kernels' arithmetic build without a toolkit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"
#include "kernels/cuda/attend/attend_choice.h"

struct CUstream_st;     // cudaStream_t is CUstream_st*
struct CUtensorMap_st;  // CUtensorMap

namespace tributary::cuda {

/// Which arithmetic computes a leaf. Only heads and shape decide it, so that neither `s_q` nor the
/// batch changes a bit.
enum class AttendKernel : std::uint8_t {
  kGeneric,   // any latent widths, bf16 or fp32, fp32 FMA
  kFewRows,   // sm_80 and later: 512 + 64, bf16; mma.sync in tiles of 16 rows
  kManyRows,  // sm_90: 512 + 64, bf16; wgmma in tiles of 64 rows
};

/// The properties of a device that the choice and the launch need.
struct DeviceLimits {
  int compute_capability = 0;  // 80, 86, 90, ...
  int multiprocessors = 0;
  std::size_t shared_bytes = 0;  // of a block, at most (cudaDevAttrMaxSharedMemoryPerBlockOptin)
};

/// Throws kUnsupported for a forced `choice` that does not support the shape or the device.
[[nodiscard]] AttendKernel choose_kernel(int heads, const CacheLayout& layout, DType query_dtype,
                                         int compute_capability,
                                         AttendChoice choice = AttendChoice::kAuto);

/// A row is one (token, head) of a task: row = token * heads + head.
/// Largest number of rows of a unit of work if no task has more than `max_tokens` tokens. No bits
/// of a result depend on it.
[[nodiscard]] int unit_rows(AttendKernel kernel, int heads, int max_tokens,
                            const DeviceLimits& device);

/// Parts of the persistent grid, or of its first block of each multiprocessor
/// (AttendLaunch::blocks): blocks, or clusters of blocks if a unit uses a cluster.
[[nodiscard]] int attend_parts(AttendKernel kernel, int unit_rows, const DeviceLimits& device);

/// Whether a launch of such units also merges leaves (AttendLaunch::task_trees).
[[nodiscard]] bool merges_leaves(AttendKernel kernel, int unit_rows);

/// Rows [first_row, first_row + unit_rows) of a task, or fewer at its end.
struct WorkUnit {
  std::int32_t task = 0;
  std::int32_t first_row = 0;
  friend bool operator==(const WorkUnit&, const WorkUnit&) = default;
};

/// Part p computes units[part_begin[p]] to units[part_begin[p + 1] - 1], in this order.
struct AttendSchedule {
  std::vector<std::int32_t> part_begin;  // [parts + 1]
  std::vector<WorkUnit> units;           // [number of units]
  std::int64_t busiest = 0;              // cost of the part with the most work, in pages
};

/// Balances whole leaves over the parts by cost: the longest first, each to the part with the least
/// work. Throws kInvalidArgument. O(n log n) for n units.
[[nodiscard]] AttendSchedule schedule_attend(std::span<const LeafTask> tasks, int heads,
                                             int unit_rows, int parts);
/// The same for chains of tasks: all of a chain's work on the same rows goes to one part, in its
/// order. Tasks of a chain have the same number of tokens.
[[nodiscard]] AttendSchedule schedule_chains(std::span<const LeafTask> tasks,
                                             std::span<const std::vector<std::int32_t>> chains,
                                             int heads, int unit_rows, int parts);

/// Records from this index on are in a launch's own `scratch`, not in `states`.
inline constexpr std::int64_t kScratchRecord = std::int64_t{1} << 56;

/// Merges up to kMergeSlots states into one: neighbours first, then their results, as in a binary
/// tree whose leaves are the first `slots` of `inputs`. Where the right side is empty, the left one
/// is copied. A tree of 0 tokens does nothing, so that a captured launch can be padded.
inline constexpr int kMergeSlots = 8;
struct MergeTree {
  std::int64_t dst = 0;
  std::array<std::int64_t, kMergeSlots> inputs{};  // records; kNoState: none
  std::int32_t tokens = 0;
  std::int32_t slots = 2;  // 2, 4 or 8
  friend bool operator==(const MergeTree&, const MergeTree&) = default;
};

/// Everything that a launch reads, as plain data. All pointers are device pointers. Everything that
/// changes between steps is device data, so that a captured launch can be replayed.
struct AttendLaunch {
  const LeafTask* tasks = nullptr;
  const std::int32_t* part_begin = nullptr;   // [parts + 1]
  const WorkUnit* units = nullptr;            // [part_begin[parts]]
  const std::int32_t* block_table = nullptr;  // page numbers
  const std::int32_t* item_layer = nullptr;
  const std::byte* cache = nullptr;  // [layer][page][kPageTokens][latent_dim], layout.row_format;
                                     // aligned to 128 bytes
  CacheLayout layout;
  const std::byte* queries = nullptr;  // [heads][latent_dim] of record r at r * query_stride_bytes
  std::size_t query_stride_bytes = 0;
  DType query_dtype = DType::kBF16;
  int heads = 0;
  float softmax_scale = 0;
  const std::int32_t* task_trees = nullptr;  // [tasks], null where there are none: the tree that is
                                             // merged after a unit, of its rows; or -1
  const MergeTree* trees = nullptr;
  float* states = nullptr;     // records of StateShape{heads, kv_lora_rank}
  float* scratch = nullptr;    // likewise; null if no record is in scratch
  SelectedRows selected = {};  // with lists, all tasks are of one token
  int unit_rows = 0;           // as the schedule was made for
  int parts = 0;               // blocks or clusters of the grid
  AttendKernel kernel = AttendKernel::kGeneric;
  int blocks = 1;  // kFewRows alone: of a multiprocessor
  int stages = 0;  // kFewRows alone: tiles of a block's ring
  /// kManyRows alone, host pointer: the cache as rows [layers * pages * kPageTokens, latent_dim].
  /// Copied into the launch.
  const CUtensorMap_st* cache_map = nullptr;
  friend bool operator==(const AttendLaunch&, const AttendLaunch&) = default;
};

/// The fields of a launch that the arguments (at least one task) and the device decide: all except
/// the addresses of cache and plan.
[[nodiscard]] AttendLaunch describe_attend(const AttendArgs& args, const CacheLayout& layout,
                                           const DeviceLimits& device,
                                           AttendChoice choice = AttendChoice::kAuto,
                                           bool fast_order = false);

/// Enqueues the launch. Throws kInternal with CUDA's message if it is refused. The arguments were
/// checked by the interface (core/interface/validate.h).
void enqueue(const AttendLaunch& launch, CUstream_st* stream);

/// Loads the kernels of these launches on the current device, except those that it cannot run.
/// Otherwise the driver loads a kernel at its first launch, and may then wait for all other work.
void load_attend(const DeviceLimits& device);
void load_many_rows();

/// The kManyRows part of enqueue() (kernels/cuda/sm90).
void attend_many_rows(const AttendLaunch& launch, CUstream_st* stream);

/// Levels of a merge call that one launch takes.
inline constexpr int kMergeLevels = 3;
static_assert(1 << kMergeLevels == kMergeSlots);

/// The trees of launches to be made one after the other, ceil(levels / kMergeLevels) of them. Ops
/// are those of a valid MergeArgs.
[[nodiscard]] std::vector<std::vector<MergeTree>> merge_trees(std::span<const MergeOp> ops,
                                                              int levels);

/// Keeps the trees of the last plans: a step has the same merges in all its layers, both here and
/// at the home.
class MergePlans {
 public:
  [[nodiscard]] const std::vector<std::vector<MergeTree>>& trees(std::span<const MergeOp> ops,
                                                                 int levels);

 private:
  struct Plan {
    std::vector<MergeOp> ops;
    int levels = 0;
    std::vector<std::vector<MergeTree>> trees;
  };
  std::array<Plan, 2> plans_;  // the one used last in front
};

struct MergeLaunch {
  const MergeTree* trees = nullptr;  // device memory, [count]
  int count = 0;
  int heads = 0;
  int width = 0;
  float* states = nullptr;
  float* scratch = nullptr;  // records from kScratchRecord on; may be null
  friend bool operator==(const MergeLaunch&, const MergeLaunch&) = default;
};
void enqueue(const MergeLaunch& launch, CUstream_st* stream);

}  // namespace tributary::cuda
