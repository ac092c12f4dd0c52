// What the leaves of a sequence cost its home: the subtree roots that travel there.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/cache/leaves.h"
#include "core/plan/merge_tree.h"

namespace tributary {

/// Subtree roots that travel to the sequence's home.
inline std::int64_t inbound_roots(const Sequence& s, int leaf_tokens) {
  const std::int64_t leaves = ceil_div(s.length, leaf_tokens);
  std::vector<TreeNode> roots;
  for_each_owner_run(s, leaves, [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
    if (owner != s.home) append_subtree_roots(begin, end, leaves, roots);
  });
  return static_cast<std::int64_t>(roots.size());
}

}  // namespace tributary
