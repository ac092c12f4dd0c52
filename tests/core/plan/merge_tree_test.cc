#include "core/plan/merge_tree.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/core/plan/merge_interpreter.h"

namespace tributary {
namespace {

constexpr std::int64_t kMaxLeaves = 70;

/// Neither associative nor commutative: the result spells out the tree.
std::string join(const std::string& left, const std::string& right) {
  return "(" + left + right + ")";
}

std::string leaf_text(std::int64_t leaf, std::int32_t token) {
  return std::to_string(leaf) + static_cast<char>('a' + token) + ".";
}

/// A pool's merges for one sequence: every owner reduces its runs of leaves to subtree roots, the
/// home reduces the roots. One array of records: leaves, roots, result.
std::vector<std::string> merge_by_owners(const std::vector<int>& owner, std::int32_t tokens,
                                         std::mt19937& random) {
  const auto leaves = static_cast<std::int64_t>(owner.size());
  std::vector<std::optional<std::string>> records(owner.size() * static_cast<std::size_t>(tokens));
  for (std::int64_t l = 0; l < leaves; ++l) {
    for (std::int32_t t = 0; t < tokens; ++t) {
      records[static_cast<std::size_t>(l * tokens + t)] = leaf_text(l, t);
    }
  }
  const auto allocate = [&] {
    const auto first = static_cast<std::int64_t>(records.size());
    records.resize(records.size() + static_cast<std::size_t>(tokens));
    return first;
  };

  MergeSchedule local;
  std::vector<NodeState> roots;
  std::vector<TreeNode> found;
  for (std::int64_t begin = 0, end = 0; begin < leaves; begin = end) {
    while (end < leaves &&
           owner[static_cast<std::size_t>(end)] == owner[static_cast<std::size_t>(begin)]) {
      ++end;
    }
    found.clear();
    append_subtree_roots(begin, end, leaves, found);
    for (const TreeNode& node : found) {
      std::vector<NodeState> nodes;
      for (std::int64_t l = node.first_leaf(); l < std::min(node.end_leaf(), leaves); ++l) {
        nodes.push_back({{0, static_cast<std::int32_t>(l)}, l * tokens});
      }
      roots.push_back({node, allocate()});
      local.add(nodes, node.level, roots.back().state, tokens);
    }
  }
  const std::int64_t result = allocate();
  MergeSchedule home;
  home.add(roots, tree_height(leaves), result, tokens);

  run_merges(local, records, join, random);
  run_merges(home, records, join, random);
  std::vector<std::string> states;
  states.reserve(static_cast<std::size_t>(tokens));
  for (std::int32_t t = 0; t < tokens; ++t) {
    states.push_back(records[static_cast<std::size_t>(result + t)].value_or("nothing"));
  }
  return states;
}

void expect_canonical(const std::vector<int>& owner, std::int32_t tokens, std::mt19937& random) {
  const auto states = merge_by_owners(owner, tokens, random);
  for (std::int32_t t = 0; t < tokens; ++t) {
    const auto leaf = [&](std::int64_t l) { return leaf_text(l, t); };
    ASSERT_EQ(states[static_cast<std::size_t>(t)],
              canonical_tree(static_cast<std::int64_t>(owner.size()), leaf, join));
  }
}

TEST(MergeTree, HeightIsTheLevelOfTheRoot) {
  EXPECT_EQ(tree_height(1), 0);
  EXPECT_EQ(tree_height(2), 1);
  EXPECT_EQ(tree_height(3), 2);
  EXPECT_EQ(tree_height(4), 2);
  EXPECT_EQ(tree_height(5), 3);
  EXPECT_EQ(tree_height(1 << 20), 20);
  EXPECT_EQ(tree_height((1 << 20) + 1), 21);
}

TEST(MergeTree, TheTreeItselfIsTheOneOfTheDesign) {
  const auto leaf = [](std::int64_t l) { return leaf_text(l, 0); };
  EXPECT_EQ(canonical_tree(1, leaf, join), "0a.");
  EXPECT_EQ(canonical_tree(3, leaf, join), "((0a.1a.)2a.)");
  EXPECT_EQ(canonical_tree(5, leaf, join), "(((0a.1a.)(2a.3a.))4a.)");
  EXPECT_EQ(canonical_tree(7, leaf, join), "(((0a.1a.)(2a.3a.))((4a.5a.)6a.))");
}

/// The nodes whose existing leaves all lie in [begin, end) and whose parent's do not, left to
/// right, found from the root down.
void maximal_nodes(TreeNode node, std::int64_t begin, std::int64_t end, std::int64_t leaves,
                   std::vector<TreeNode>& found) {
  const std::int64_t first = node.first_leaf();
  const std::int64_t last = std::min(node.end_leaf(), leaves);
  if (first >= last || last <= begin || first >= end) return;
  if (begin <= first && last <= end) {
    found.push_back(node);
    return;
  }
  maximal_nodes({node.level - 1, 2 * node.index}, begin, end, leaves, found);
  maximal_nodes({node.level - 1, 2 * node.index + 1}, begin, end, leaves, found);
}

TEST(MergeTree, RootsOfARangeAreItsMaximalNodes) {
  for (std::int64_t leaves = 1; leaves <= kMaxLeaves; ++leaves) {
    for (std::int64_t begin = 0; begin < leaves; ++begin) {
      for (std::int64_t end = begin + 1; end <= leaves; ++end) {
        std::vector<TreeNode> expected;
        maximal_nodes({tree_height(leaves), 0}, begin, end, leaves, expected);
        std::vector<TreeNode> got;
        append_subtree_roots(begin, end, leaves, got);
        ASSERT_EQ(got, expected) << begin << " .. " << end << " of " << leaves;
      }
    }
  }
}

TEST(MergeTree, RootsAreAppended) {
  std::vector<TreeNode> roots{{7, 7}};
  append_subtree_roots(1, 4, 4, roots);
  EXPECT_EQ(roots, (std::vector<TreeNode>{{7, 7}, {0, 1}, {1, 1}}));
}

TEST(MergeTree, ANodeThatOverhangsIsOneRoot) {
  std::vector<TreeNode> roots;
  append_subtree_roots(4, 5, 5, roots);
  EXPECT_EQ(roots, (std::vector<TreeNode>{{2, 1}}));  // 4 .. 7, of which only 4 exists
  roots.clear();
  append_subtree_roots(0, 5, 5, roots);
  EXPECT_EQ(roots, (std::vector<TreeNode>{{3, 0}}));
}

class MergeTreePartition
    : public testing::TestWithParam<
          std::pair<const char*, std::function<int(std::int64_t leaf, std::mt19937&)>>> {};

TEST_P(MergeTreePartition, GivesTheCanonicalTree) {
  std::mt19937 random(1);
  for (std::int64_t leaves = 1; leaves <= kMaxLeaves; ++leaves) {
    for (const std::int32_t tokens : {1, 3}) {
      std::vector<int> owner;
      for (std::int64_t l = 0; l < leaves; ++l) owner.push_back(GetParam().second(l, random));
      expect_canonical(owner, tokens, random);
      if (HasFatalFailure()) FAIL() << leaves << " leaves, " << tokens << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , MergeTreePartition,
    testing::Values(
        std::pair("OneOwner", [](std::int64_t, std::mt19937&) { return 0; }),
        std::pair("Alternating", [](std::int64_t leaf, std::mt19937&) { return int(leaf % 2); }),
        std::pair("InThrees", [](std::int64_t leaf, std::mt19937&) { return int(leaf / 3); }),
        std::pair("InAlignedFours",
                  [](std::int64_t leaf, std::mt19937&) { return int(leaf / 4 % 2); }),
        std::pair("FirstAlone", [](std::int64_t leaf, std::mt19937&) { return leaf == 0 ? 1 : 0; }),
        std::pair("Random2", [](std::int64_t, std::mt19937& random) { return int(random() % 2); }),
        std::pair("Random9", [](std::int64_t, std::mt19937& random) { return int(random() % 9); })),
    [](const auto& param_info) { return param_info.param.first; });

TEST(MergeTree, RandomRunsGiveTheCanonicalTree) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto leaves = static_cast<std::size_t>(1 + random() % kMaxLeaves);
    const auto mean_run = 1 + random() % 12;
    std::vector<int> owner{0};
    while (owner.size() < leaves) {
      owner.push_back(random() % mean_run == 0 ? int(random() % 5) : owner.back());
    }
    expect_canonical(owner, 1, random);
    if (HasFatalFailure()) FAIL() << "trial " << trial;
  }
}

TEST(MergeSchedule, OneNodeIsCopiedUnlessItIsThere) {
  MergeSchedule schedule;
  std::vector<NodeState> nodes{{{3, 0}, 5}};
  schedule.add(nodes, 3, 5, 2);
  for (const auto& level : schedule.levels()) EXPECT_TRUE(level.empty());
  nodes = {{{2, 0}, 5}};  // below the target: its sibling does not exist
  schedule.add(nodes, 3, 8, 2);
  ASSERT_FALSE(schedule.levels().empty());
  ASSERT_EQ(schedule.levels()[0].size(), 1U);
  const MergeOp& op = schedule.levels()[0][0];
  EXPECT_EQ(op.dst, 8);
  EXPECT_EQ(op.left, 5);
  EXPECT_EQ(op.right, kNoState);
  EXPECT_EQ(op.tokens, 2);
}

TEST(MergeSchedule, ClearForgets) {
  MergeSchedule schedule;
  std::vector<NodeState> nodes{{{0, 0}, 0}, {{0, 1}, 1}};
  schedule.add(nodes, 1, 2, 1);
  schedule.clear();
  for (const auto& level : schedule.levels()) EXPECT_TRUE(level.empty());
}

}  // namespace
}  // namespace tributary
