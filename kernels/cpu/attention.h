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

  /// Cuts units as `pairs` requires, or, if it is null, as the fp32 kernels do.
  void cut_tasks(const AttendArgs& args, const PairKernel* pairs);
  /// Scratch memory of `bytes` for each thread.
  void reserve_scratch(std::size_t bytes);
  [[nodiscard]] std::byte* scratch_of(std::size_t thread) const noexcept;
  /// The same for the fp32 kernels, divided into workspaces.
  void reserve_workspaces(std::size_t depth, std::size_t width);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  const PrefetchInto prefetch_ = prefetch_into();
  std::vector<LeafUnit> leaf_units_;
  std::vector<MergeUnit> merge_units_;
  std::size_t scratch_bytes_ = 0;
  std::vector<AlignedBytes> scratch_;
  std::vector<AttendWorkspace> workspaces_;
};

}  // namespace tributary::cpu
