// Parts of a range, runs of one owner, rounding up, and the causal mask.
#include "core/cache/leaves.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/interface/visible_rows.h"

namespace tributary {
namespace {

constexpr int kLeafTokens = 64;
using Numbers = std::vector<std::int64_t>;

/// leaf, begin, end and first row of each part.
std::vector<Numbers> parts(std::int64_t begin, std::int64_t end) {
  std::vector<Numbers> all;
  for_each_leaf(begin, end, kLeafTokens, [&](const LeafPart& part) {
    EXPECT_EQ(part.rows(), part.end - part.begin);
    all.push_back({part.leaf, part.begin, part.end, part.first_row});
  });
  return all;
}

TEST(Leaves, ARangeIsCutAtTheBordersOfLeaves) {
  EXPECT_EQ(parts(0, 130),
            (std::vector<Numbers>{{0, 0, 64, 0}, {1, 64, 128, 0}, {2, 128, 130, 0}}));
  EXPECT_EQ(parts(70, 129), (std::vector<Numbers>{{1, 70, 128, 6}, {2, 128, 129, 0}}));
  EXPECT_EQ(parts(64, 128), (std::vector<Numbers>{{1, 64, 128, 0}}));
  EXPECT_EQ(parts(65, 66), (std::vector<Numbers>{{1, 65, 66, 1}}));
}

TEST(Leaves, AnEmptyRangeHasNone) {
  EXPECT_TRUE(parts(0, 0).empty());
  EXPECT_TRUE(parts(64, 64).empty());
  EXPECT_TRUE(parts(5, 3).empty());
}

Sequence owned_by(const std::vector<std::int32_t>& owners) {
  Sequence sequence;
  for (const std::int32_t owner : owners) sequence.leaves.push_back({.owner = owner, .pages = {}});
  return sequence;
}

TEST(Leaves, OfASequenceComeWithTheirPart) {
  const Sequence sequence = owned_by({3, 1, 2});
  std::vector<Numbers> seen;
  for_each_leaf(sequence, 60, 130, kLeafTokens, [&](const Leaf& leaf, const LeafPart& part) {
    seen.push_back({leaf.owner, part.rows()});
  });
  EXPECT_EQ(seen, (std::vector<Numbers>{{3, 4}, {1, 64}, {2, 2}}));
}

TEST(Leaves, NeighboursOfOneOwnerAreOneRun) {
  const Sequence sequence = owned_by({2, 2, 0, 2, 1, 1});
  const auto runs = [&](std::int64_t leaves) {
    std::vector<Numbers> all;
    for_each_owner_run(sequence, leaves,
                       [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
                         all.push_back({owner, begin, end});
                       });
    return all;
  };
  EXPECT_EQ(runs(6), (std::vector<Numbers>{{2, 0, 2}, {0, 2, 3}, {2, 3, 4}, {1, 4, 6}}));
  EXPECT_EQ(runs(5), (std::vector<Numbers>{{2, 0, 2}, {0, 2, 3}, {2, 3, 4}, {1, 4, 5}}));
  EXPECT_TRUE(runs(0).empty());
}

TEST(CeilDiv, RoundsUp) {
  static_assert(ceil_div(0, 64) == 0);
  static_assert(ceil_div(1, 64) == 1);
  static_assert(ceil_div(64, 64) == 1);
  static_assert(ceil_div(std::int64_t{65}, 64) == 2);
  static_assert(ceil_div(std::int64_t{1} << 40, 1) == std::int64_t{1} << 40);
}

TEST(VisibleRows, AreThePrefixUpToTheQuery) {
  static_assert(visible_rows(127, 128, 64) == 0);
  static_assert(visible_rows(128, 128, 64) == 1);
  static_assert(visible_rows(190, 128, 64) == 63);
  static_assert(visible_rows(500, 128, 64) == 64);
  static_assert(visible_rows(-5, 0, 64) == 0);
  const LeafTask task{.tokens = 3, .rows = 10, .leaf_begin = 64, .query_position = 72};
  EXPECT_EQ(visible_rows(task, 0), 9);
  EXPECT_EQ(visible_rows(task, 1), 10);
  EXPECT_EQ(visible_rows(task, 2), 10);
}

}  // namespace
}  // namespace tributary
