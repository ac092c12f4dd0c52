// Turns the ops of a merge call into launches: the levels of a tree of merges that fit into one
// pass over the states.
#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "core/base/ceil_div.h"
#include "kernels/cuda/attend/attend.h"

namespace tributary::cuda {
namespace {

/// The trees of one launch, from the ops of its levels.
class Pass {
 public:
  void add(const MergeOp& op) {
    const MergeTree left = operand(op.left, op.tokens);
    const MergeTree right = operand(op.right, op.tokens);
    const int half = std::max(left.slots, right.slots);  // a power of two, of at most 4
    MergeTree tree{.dst = op.dst, .tokens = op.tokens, .slots = 2 * half};
    tree.inputs.fill(kNoState);
    std::copy_n(left.inputs.begin(), left.slots, tree.inputs.begin());
    std::copy_n(right.inputs.begin(), right.slots, tree.inputs.begin() + half);
    made_[op.dst] = trees_.size();
    trees_.push_back(tree);
  }

  /// The trees that no other one took, in the order of the ops.
  [[nodiscard]] std::vector<MergeTree> take() {
    std::erase_if(trees_, [](const MergeTree& tree) { return tree.tokens == 0; });
    made_.clear();
    return std::exchange(trees_, {});
  }

 private:
  /// The tree that makes the record in this launch and becomes part of its reader, or the record
  /// itself.
  MergeTree operand(std::int64_t record, std::int32_t tokens) {
    const auto found = made_.find(record);
    if (found != made_.end() && trees_[found->second].tokens == tokens) {
      const MergeTree tree = trees_[found->second];
      trees_[found->second].tokens = 0;
      made_.erase(found);
      return tree;
    }
    return {.inputs = {record}, .tokens = tokens, .slots = 1};
  }

  std::vector<MergeTree> trees_;
  std::unordered_map<std::int64_t, std::size_t> made_;  // which tree makes a record
};

}  // namespace

std::vector<std::vector<MergeTree>> merge_trees(std::span<const MergeOp> ops, int levels) {
  std::vector<std::vector<MergeTree>> launches(
      static_cast<std::size_t>(ceil_div(levels, kMergeLevels)));
  Pass pass;
  auto next = ops.begin();
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const int end = static_cast<int>(i + 1) * kMergeLevels;
    for (; next != ops.end() && next->level < end; ++next) pass.add(*next);
    launches[i] = pass.take();
  }
  return launches;
}

const std::vector<std::vector<MergeTree>>& MergePlans::trees(std::span<const MergeOp> ops,
                                                             int levels) {
  const auto same = [&](const Plan& plan) {
    return plan.levels == levels && std::ranges::equal(plan.ops, ops);
  };
  if (!same(plans_[0])) {
    std::swap(plans_[0], plans_[1]);
    if (!same(plans_[0])) {
      plans_[0] = {{ops.begin(), ops.end()}, levels, merge_trees(ops, levels)};
    }
  }
  return plans_[0].trees;
}

}  // namespace tributary::cuda
