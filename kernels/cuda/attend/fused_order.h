// Merges in the attention kernel: the leaves of a subtree go to one part of the grid, one after the
// other, and the block merges their states after the last one, out of the second-level cache and
// without a launch. The functions are the merge kernel's own (merge.h), so the bits do not depend
// on which merges run here; the merge kernel does the others.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "kernels/cuda/attend/attend.h"

namespace tributary::cuda {

struct FusedOrder {
  AttendSchedule schedule;
  std::vector<std::int32_t> task_trees;  // AttendLaunch::task_trees; empty if there are no merges
  std::vector<MergeTree> trees;
  std::vector<std::vector<MergeTree>> rest;  // launches of the other merges, none of them empty
};

/// Fuses all merges below `level`, 0 to kMergeLevels, whose states come from the tasks alone. Both
/// calls are valid; only the tasks and heads of the attention count. Throws kInvalidArgument for a
/// bad grid.
[[nodiscard]] FusedOrder fused_order_below(int level, const AttendArgs& args,
                                           const MergeArgs& merge, int unit_rows, int parts);
/// The same with the level that makes the whole end first, judged by counts of pages: longer chains
/// of leaves balance worse.
[[nodiscard]] FusedOrder fused_order(const AttendArgs& args, const MergeArgs& merge, int unit_rows,
                                     int parts);

/// Keeps the order of the last plan: a step has the same plan in all its layers.
class FusedPlan {
 public:
  [[nodiscard]] const FusedOrder& order(const AttendArgs& args, const MergeArgs& merge,
                                        int unit_rows, int parts);

 private:
  std::vector<LeafTask> tasks_;
  std::vector<MergeOp> ops_;
  std::array<int, 4> rest_{};  // heads, levels, unit_rows, parts
  FusedOrder order_;
};

}  // namespace tributary::cuda
