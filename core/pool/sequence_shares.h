// What the leaves of a sequence mean to the workers: rows of each, subtree roots to the home.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/plan/merge_tree.h"

namespace tributary {

/// Calls visit(owner, tokens) for every leaf of the first `length` rows.
template <typename Visit>
void for_each_leaf(const Sequence& s, std::int64_t length, int leaf_tokens, Visit visit) {
  for (std::int64_t begin = 0; begin < length; begin += leaf_tokens) {
    const Leaf& leaf = s.leaves[static_cast<std::size_t>(begin / leaf_tokens)];
    visit(leaf.owner, std::min<std::int64_t>(leaf_tokens, length - begin));
  }
}

/// Subtree roots that travel to the sequence's home.
inline std::int64_t inbound_roots(const Sequence& s, int leaf_tokens) {
  const std::int64_t leaves = ceil_div(s.length, leaf_tokens);
  std::vector<TreeNode> roots;
  for (std::int64_t begin = 0; begin < leaves;) {
    const std::int32_t owner = s.leaves[static_cast<std::size_t>(begin)].owner;
    std::int64_t end = begin + 1;
    while (end < leaves && s.leaves[static_cast<std::size_t>(end)].owner == owner) ++end;
    if (owner != s.home) append_subtree_roots(begin, end, leaves, roots);
    begin = end;
  }
  return static_cast<std::int64_t>(roots.size());
}

}  // namespace tributary
