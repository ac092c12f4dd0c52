#include "core/plan/merge_tree.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace tributary {

int tree_height(std::int64_t leaves) noexcept {
  return std::bit_width(static_cast<std::uint64_t>(leaves - 1));
}

void append_subtree_roots(std::int64_t begin, std::int64_t end, std::int64_t leaves,
                          std::vector<TreeNode>& roots) {
  const int height = tree_height(leaves);
  while (begin < end) {
    int level = 0;
    while (level < height) {
      const std::int64_t width = std::int64_t{2} << level;
      if (begin % width != 0 || std::min(begin + width, leaves) > end) break;
      ++level;
    }
    const TreeNode node{level, static_cast<std::int32_t>(begin >> level)};
    roots.push_back(node);
    begin = node.end_leaf();
  }
}

void MergeSchedule::clear() {
  for (auto& ops : levels_) ops.clear();
}

std::vector<MergeOp>& MergeSchedule::level(int index) {
  const auto i = static_cast<std::size_t>(index);
  if (levels_.size() <= i) levels_.resize(i + 1);
  return levels_[i];
}

void MergeSchedule::add(std::vector<NodeState>& nodes, int target_level, std::int64_t final_state,
                        std::int32_t tokens) {
  MergeOp* last = nullptr;
  for (int l = 0; l < target_level && nodes.size() > 1; ++l) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      NodeState here = nodes[i];
      if (here.node.level == l) {
        const bool has_sibling = i + 1 < nodes.size() && nodes[i + 1].node.level == l;
        // Left children only: a right child was taken by its sibling, and the nodes cover all
        // existing leaves of the target.
        assert(here.node.index % 2 == 0);
        if (has_sibling) {
          auto& ops = level(l);
          ops.push_back({here.state, here.state, nodes[i + 1].state, tokens, l});
          last = &ops.back();
          ++i;
        }
        here.node = {l + 1, here.node.index / 2};
      }
      nodes[kept++] = here;
    }
    nodes.resize(kept);
  }
  assert(nodes.size() == 1);
  if (last != nullptr) {
    last->dst = final_state;
  } else if (nodes.front().state != final_state) {
    level(0).push_back({final_state, nodes.front().state, kNoState, tokens});
  }
}

}  // namespace tributary
