// Splits attention and merges into units of work and runs them on the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"

namespace tributary::cpu {

/// Arguments are valid (core/interface/validate.h). Memory grows to the largest call and is kept.
class Attention {
 public:
  Attention(const KernelTable& kernels, ThreadPool& pool);

  void attend(const HostCache& cache, const AttendArgs& args);
  void run(const DenseAttendArgs& args);
  void run(const MergeArgs& args);

 private:
  /// Ops that are independent of each other.
  void run_level(const MergeArgs& args, std::span<const MergeOp> ops);

  // Attention of some heads of one task.
  struct LeafUnit {
    const LeafTask* task = nullptr;
    std::size_t head_begin = 0, head_end = 0;
  };
  // The merge of one record.
  struct MergeUnit {
    std::int64_t dst = 0, left = 0, right = 0;
  };

  // The selected rows of one token of a task.
  struct TokenRows {
    const LeafTask* leaf = nullptr;
    std::span<const std::int32_t> positions;
  };

  /// Each token of a task becomes a task over a leaf of its selected rows alone.
  void select_rows(const AttendArgs& args);
  /// The rows of a unit that are copied.
  [[nodiscard]] GatheredRows rows_of(const HostCache& cache, const AttendArgs& args,
                                     const LeafUnit& unit) const;
  /// Cuts units as `pairs` requires, or, if it is null, as the fp32 kernels do; fewer if every unit
  /// `copies` the rows of its task.
  void cut_tasks(std::span<const LeafTask> tasks, std::size_t heads, const PairKernel* pairs,
                 bool copies);
  /// Scratch memory of `bytes` for each thread.
  void reserve_scratch(std::size_t bytes);
  [[nodiscard]] std::byte* scratch_of(std::size_t thread) const noexcept;
  /// The same for the fp32 kernels, divided into workspaces, with `more` bytes behind them.
  void reserve_workspaces(std::size_t depth, std::size_t width, std::size_t more = 0);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  const PrefetchInto prefetch_ = prefetch_into();
  std::vector<LeafUnit> leaf_units_;
  // Of a call with a selection, side by side:
  std::vector<LeafTask> token_tasks_;
  std::vector<TokenRows> token_rows_;
  std::vector<std::int32_t> copied_pages_;  // where the copies lie, for any unit
  std::vector<MergeUnit> merge_units_;
  std::size_t scratch_bytes_ = 0;
  std::vector<AlignedBytes> scratch_;
  std::vector<AttendWorkspace> workspaces_;
};

}  // namespace tributary::cpu
