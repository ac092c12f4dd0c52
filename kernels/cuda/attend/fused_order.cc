#include "kernels/cuda/attend/fused_order.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "kernels/cuda/attend/cost.h"

namespace tributary::cuda {
namespace {

using TaskOf = std::unordered_map<std::int64_t, std::int32_t>;  // by the record of its state

// Separates the ops below `level` whose leaves are all tasks from the others.
void divide(int level, const MergeArgs& merge, std::span<const LeafTask> tasks,
            std::vector<MergeOp>& fused, std::vector<MergeOp>& others) {
  std::unordered_map<std::int64_t, std::int32_t> made;  // tokens of what tasks and fused ops make
  for (const LeafTask& task : tasks) made[task.state] = task.tokens;
  const auto take = [&](std::int64_t record, std::int32_t tokens) {
    const auto found = made.find(record);
    if (found == made.end()) return false;
    const bool same = found->second == tokens;
    made.erase(found);
    return same;
  };
  for (const MergeOp& op : merge.ops) {
    const bool left = take(op.left, op.tokens);
    const bool right = op.right == kNoState || take(op.right, op.tokens);
    if (op.level < level && left && right) {
      made[op.dst] = op.tokens;
      fused.push_back(op);
    } else {
      made.erase(op.dst);
      others.push_back(op);
    }
  }
}

std::int64_t records(const MergeTree& tree) {
  const auto inputs = std::span(tree.inputs).first(static_cast<std::size_t>(tree.slots));
  return tree.tokens * (1 + tree.slots - std::ranges::count(inputs, kNoState));
}

// The cost of a launch that waits for the previous one: some 3 us, in which a part of the grid
// takes two pages (bench/gpu_model.py). The second constant is the bytes of a page, which takes at
// least as long as reading it.
constexpr double kLaunchPages = 2;
constexpr double kPageBytes = 64 * 1152;

double pages_of(const FusedOrder& order, const MergeArgs& merge, int parts) {
  auto pages = static_cast<double>(order.schedule.busiest);
  std::int64_t moved = 0;
  for (const std::vector<MergeTree>& trees : order.rest) {
    pages += kLaunchPages;
    for (const MergeTree& tree : trees) moved += records(tree);
  }
  return pages + static_cast<double>(moved) * static_cast<double>(merge.shape.record_bytes()) /
                     (kPageBytes * parts);
}

}  // namespace

FusedOrder fused_order_below(int level, const AttendArgs& args, const MergeArgs& merge,
                             int unit_rows, int parts) {
  const std::span<const LeafTask> tasks = args.tasks;
  std::vector<MergeOp> fused;
  std::vector<MergeOp> others;
  divide(level, merge, tasks, fused, others);
  FusedOrder order;
  order.trees = std::move(merge_trees(fused, kMergeLevels).front());
  if (!merge.empty()) order.task_trees.assign(tasks.size(), -1);
  TaskOf task_of;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    task_of[tasks[t].state] = static_cast<std::int32_t>(t);
  }
  // The tasks of a tree, from left to right, are a chain.
  std::vector<std::vector<std::int32_t>> chains;
  std::vector<bool> chained(tasks.size());
  for (std::size_t i = 0; i < order.trees.size(); ++i) {
    std::vector<std::int32_t>& chain = chains.emplace_back();
    for (const std::int64_t input :
         std::span(order.trees[i].inputs).first(static_cast<std::size_t>(order.trees[i].slots))) {
      if (input == kNoState) continue;
      chain.push_back(task_of.at(input));
      chained[static_cast<std::size_t>(chain.back())] = true;
    }
    order.task_trees[static_cast<std::size_t>(chain.back())] = static_cast<std::int32_t>(i);
  }
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (!chained[t]) chains.push_back({static_cast<std::int32_t>(t)});
  }
  order.schedule = schedule_chains(tasks, chains, args.heads, unit_rows, parts);
  order.rest = merge_trees(others, merge.levels);
  std::erase_if(order.rest, [](const std::vector<MergeTree>& trees) { return trees.empty(); });
  return order;
}

FusedOrder fused_order(const AttendArgs& args, const MergeArgs& merge, int unit_rows, int parts) {
  int level = merge.empty() ? 0 : std::min(merge.levels, kMergeLevels);
  FusedOrder best = fused_order_below(level, args, merge, unit_rows, parts);
  double least = pages_of(best, merge, parts);
  while (level-- > 0) {
    FusedOrder next = fused_order_below(level, args, merge, unit_rows, parts);
    const double pages = pages_of(next, merge, parts);
    if (pages >= least) continue;
    least = pages;
    best = std::move(next);
  }
  return best;
}

const FusedOrder& FusedPlan::order(const AttendArgs& args, const MergeArgs& merge, int unit_rows,
                                   int parts) {
  const std::array<int, 4> rest{args.heads, merge.levels, unit_rows, parts};
  if (rest != rest_ || !std::ranges::equal(args.tasks, tasks_) ||
      !std::ranges::equal(merge.ops, ops_)) {
    order_ = fused_order(args, merge, unit_rows, parts);
    tasks_.assign(args.tasks.begin(), args.tasks.end());
    ops_.assign(merge.ops.begin(), merge.ops.end());
    rest_ = rest;
  }
  return order_;
}

}  // namespace tributary::cuda
