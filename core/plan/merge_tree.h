// The fixed binary tree over leaf indices in which partial states are merged.
// Node (level, index) covers leaves [index << level, (index + 1) << level); where the right child
// covers no existing leaf, the node is its left child.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/interface/calls.h"

namespace tributary {

struct TreeNode {
  std::int32_t level = 0;
  std::int32_t index = 0;

  /// First leaf that the node covers.
  [[nodiscard]] constexpr std::int64_t first_leaf() const noexcept {
    return static_cast<std::int64_t>(index) << level;
  }
  [[nodiscard]] constexpr std::int64_t end_leaf() const noexcept {
    return (static_cast<std::int64_t>(index) + 1) << level;
  }
  friend constexpr bool operator==(const TreeNode&, const TreeNode&) = default;
};

/// Level of the root of a tree over `leaves` >= 1 leaves.
[[nodiscard]] int tree_height(std::int64_t leaves) noexcept;

/// Appends the maximal nodes whose existing leaves are exactly covered by [begin, end), in order;
/// 0 <= begin < end <= leaves. A node may overhang the last leaf.
void append_subtree_roots(std::int64_t begin, std::int64_t end, std::int64_t leaves,
                          std::vector<TreeNode>& roots);

/// A node and the record where its state lies.
struct NodeState {
  TreeNode node;
  std::int64_t state = 0;
};

/// Merges by tree level: all operations of one level are independent of each other.
class MergeSchedule {
 public:
  void clear();
  /// Adds the merges that reduce `nodes` (adjacent, in order, all existing leaves of one node of
  /// level `target_level`; changed on the way) to one state of `tokens` records. Intermediate
  /// results replace their left operand; the last one goes to `final_state`. A single node is
  /// copied there, unless it already is there.
  void add(std::vector<NodeState>& nodes, int target_level, std::int64_t final_state,
           std::int32_t tokens);

  /// Operations of each level, lowest first; levels may be empty.
  [[nodiscard]] std::span<const std::vector<MergeOp>> levels() const noexcept { return levels_; }

 private:
  std::vector<MergeOp>& level(int index);
  std::vector<std::vector<MergeOp>> levels_;
};

}  // namespace tributary
