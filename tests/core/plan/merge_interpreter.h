// Runs a merge schedule over records of any type, and checks the rules that a device relies on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "core/plan/merge_tree.h"

namespace tributary {

/// A record is live from its first write until a merge takes it as an operand. The schedule may
/// read live records only, must not overwrite one, and the operations of a level must not touch
/// each other's records (so that any order, here a random one, gives the same). A result replaces
/// an operand or goes where no operation has been, so that levels may be done as one (MergeArgs).
/// The first violation is reported as a failure of the test, and ends the run.
template <typename T, typename Merge>
void run_merges(const MergeSchedule& schedule, std::vector<std::optional<T>>& records,
                const Merge& merge, std::mt19937& random) {
  const auto in_range = [&](std::int64_t first, std::int32_t tokens) {
    return first >= 0 && tokens >= 1 && first + tokens <= static_cast<std::int64_t>(records.size());
  };
  std::set<std::int64_t> named;
  for (const auto& level : schedule.levels()) {
    std::set<std::int64_t> touched;
    for (const MergeOp& op : level) {
      ASSERT_EQ(op.level, &level - schedule.levels().data());
      ASSERT_TRUE(op.dst == op.left || !named.contains(op.dst)) << "record " << op.dst;
      named.insert({op.dst, op.left, op.right});
      std::set<std::int64_t> own;
      for (const std::int64_t first : {op.dst, op.left, op.right}) {
        if (first == kNoState) continue;
        ASSERT_TRUE(in_range(first, op.tokens)) << first << " + " << op.tokens;
        for (std::int32_t t = 0; t < op.tokens; ++t) own.insert(first + t);
      }
      for (const std::int64_t record : own) {
        ASSERT_TRUE(touched.insert(record).second)
            << "two operations of one level use record " << record;
      }
    }
    auto ops = level;
    std::shuffle(ops.begin(), ops.end(), random);
    for (const MergeOp& op : ops) {
      for (std::int32_t t = 0; t < op.tokens; ++t) {
        auto& left = records[static_cast<std::size_t>(op.left + t)];
        ASSERT_TRUE(left.has_value()) << "left record " << op.left + t << " is not live";
        T result = std::move(*left);
        left.reset();
        if (op.right != kNoState) {
          auto& right = records[static_cast<std::size_t>(op.right + t)];
          ASSERT_TRUE(right.has_value()) << "right record " << op.right + t << " is not live";
          result = merge(result, *right);
          right.reset();
        }
        auto& dst = records[static_cast<std::size_t>(op.dst + t)];
        ASSERT_FALSE(dst.has_value()) << "record " << op.dst + t << " is live and overwritten";
        dst = std::move(result);
      }
    }
  }
}

/// The state of node (level, index) by definition: the merge of its two children, or the left one
/// where the right one is empty. `leaf(i)` gives leaf i.
template <typename Leaf, typename Merge>
[[nodiscard]] auto canonical_node(int level, std::int64_t index, std::int64_t leaves,
                                  const Leaf& leaf, const Merge& merge) -> decltype(leaf(index)) {
  if (level == 0) return leaf(index);
  auto left = canonical_node(level - 1, 2 * index, leaves, leaf, merge);
  const std::int64_t right_begin = (2 * index + 1) << (level - 1);
  if (right_begin >= leaves) return left;
  return merge(left, canonical_node(level - 1, 2 * index + 1, leaves, leaf, merge));
}

/// The whole tree over `leaves` >= 1 leaves.
template <typename Leaf, typename Merge>
[[nodiscard]] auto canonical_tree(std::int64_t leaves, const Leaf& leaf, const Merge& merge) {
  int height = 0;
  while ((std::int64_t{1} << height) < leaves) ++height;
  return canonical_node(height, 0, leaves, leaf, merge);
}

}  // namespace tributary
