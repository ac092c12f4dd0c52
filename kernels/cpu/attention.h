// Cuts attention and merges into units of work and runs them on the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/interface/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"

namespace tributary::cpu {

/// Arguments are valid (kernels/validate.h). Memory grows to the largest call seen and stays.
class Attention {
 public:
  Attention(const KernelTable& kernels, ThreadPool& pool);

  void attend(const HostCache& cache, const AttendArgs& args);
  void attend_dense(const DenseAttendArgs& args);
  void merge(const MergeArgs& args);

 private:
  // Attention of some heads of one task.
  struct LeafUnit {
    const LeafTask* task = nullptr;
    std::size_t head_begin = 0, head_end = 0;
  };
  // The merge of one record.
  struct MergeUnit {
    std::int64_t dst = 0, left = 0, right = 0;
  };

  /// Units of at most `most_rows` query rows, not fewer than `least_rows` without need, and
  /// multiples of `quantum` where that can be.
  void cut_tasks(const AttendArgs& args, std::size_t least_rows, std::size_t most_rows,
                 std::size_t quantum);
  /// Scratch memory of `bytes` for each thread.
  void reserve_scratch(std::size_t bytes);
  [[nodiscard]] std::byte* scratch_of(std::size_t thread) const noexcept;
  /// The same for the fp32 kernels, cut into workspaces.
  void reserve_workspaces(std::size_t depth, std::size_t width);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<LeafUnit> leaf_units_;
  std::vector<MergeUnit> merge_units_;
  std::size_t scratch_bytes_ = 0;
  std::vector<AlignedBytes> scratch_;
  std::vector<AttendWorkspace> workspaces_;
};

}  // namespace tributary::cpu
