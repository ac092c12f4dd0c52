// Merges of whole trees on emulated threads. simt.h says what that shows. The conformance suite of
// backends has single merges, on the emulated device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/plan/merge_tree.h"
#include "kernels/cuda/attend/merge.h"
#include "tests/kernels/cuda/emulation/simt.h"

namespace tributary::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void launch(const std::vector<cuda::MergeTree>& trees, const StateShape& shape, float* states) {
  const cuda::MergeLaunch launch{
      .trees = trees.data(), .heads = shape.heads, .width = shape.width, .states = states};
  const auto heads = static_cast<unsigned>(shape.heads);
  const unsigned blocks_y = (heads + cuda::kMergeWarps - 1) / cuda::kMergeWarps;
  simt::run({.blocks = static_cast<unsigned>(trees.size()),
             .blocks_y = blocks_y,
             .threads = cuda::kMergeWarps * simt::kWarpLanes},
            [&launch] { cuda::merge_block(launch); });
}

std::vector<float> merged(std::vector<float> states, const std::vector<MergeOp>& ops,
                          const StateShape& shape, int levels = 1) {
  for (const auto& trees : cuda::merge_trees(ops, levels)) launch(trees, shape, states.data());
  return states;
}

// A sequence's leaves in records from `first` on, in the canonical order, into `dst`.
std::vector<MergeOp> tree_of(int leaves, std::int64_t first, std::int64_t dst, int tokens) {
  std::vector<NodeState> nodes;
  for (std::int32_t leaf = 0; leaf < leaves; ++leaf) {
    nodes.push_back({{0, leaf}, first + std::int64_t{leaf} * tokens});
  }
  MergeSchedule schedule;
  schedule.add(nodes, tree_height(leaves), dst, tokens);
  std::vector<MergeOp> ops;
  for (const auto& level : schedule.levels()) ops.insert(ops.end(), level.begin(), level.end());
  return ops;
}

TEST(Merge, ATreeInOneLaunchHasTheBitsOfItsLevels) {
  // By 16 bytes a lane in several turns; by one float.
  for (const StateShape shape : {StateShape{4, 516}, StateShape{5, 37}}) {
    for (const int leaves : {1, 2, 3, 4, 5, 7, 8, 9, 23}) {
      constexpr int kTokens = 2;
      const auto records = static_cast<std::size_t>(leaves) * kTokens;
      std::mt19937 random(static_cast<unsigned>(leaves));
      std::normal_distribution<float> normal;
      std::vector<float> states((records + kTokens) * shape.record_floats());
      for (float& value : states) value = normal(random);
      // Empty states, and ones of no weight, with NaN in them.
      for (std::size_t i = 1; i < records; i += 3) {
        float* const o = states.data() + i * shape.record_floats();
        o[0] = kNaN;
        o[shape.record_floats() - static_cast<std::size_t>(shape.heads)] =
            i % 2 == 0 ? -kInfinity : -4000.0F;
      }
      const auto out = static_cast<std::int64_t>(records);
      const std::vector<MergeOp> ops = tree_of(leaves, 0, out, kTokens);
      const int levels = std::max(1, tree_height(leaves));
      EXPECT_EQ(cuda::merge_trees(ops, levels).size(), static_cast<std::size_t>((levels + 2) / 3));
      const std::vector<float> got = merged(states, ops, shape, levels);
      std::vector<float> expected = states;
      for (MergeOp op : ops) {
        op.level = 0;
        expected = merged(std::move(expected), {op}, shape);
      }
      EXPECT_EQ(std::memcmp(got.data() + records * shape.record_floats(),
                            expected.data() + records * shape.record_floats(),
                            kTokens * shape.record_bytes()),
                0)
          << leaves << " leaves, width " << shape.width;
    }
  }
}

TEST(Merge, TreesOfACallDoNotMeet) {
  std::vector<MergeOp> ops = tree_of(4, 0, 40, 2);
  for (const MergeOp& op : tree_of(11, 8, 42, 2)) ops.push_back(op);
  std::ranges::stable_sort(ops, {}, &MergeOp::level);
  const auto launches = cuda::merge_trees(ops, 4);
  ASSERT_EQ(launches.size(), 2U);
  ASSERT_EQ(launches[0].size(), 3U);
  // In the order of their last ops: three leaves of the second, all of the first, eight of it.
  const auto none = kNoState;
  EXPECT_EQ(
      launches[0][0],
      (cuda::MergeTree{
          .dst = 40, .inputs = {0, 2, 4, 6, none, none, none, none}, .tokens = 2, .slots = 4}));
  EXPECT_EQ(launches[0][1], (cuda::MergeTree{.dst = 24,
                                             .inputs = {24, 26, 28, none, none, none, none, none},
                                             .tokens = 2,
                                             .slots = 4}));
  EXPECT_EQ(launches[0][2],
            (cuda::MergeTree{
                .dst = 8, .inputs = {8, 10, 12, 14, 16, 18, 20, 22}, .tokens = 2, .slots = 8}));
  EXPECT_EQ(launches[1],
            (std::vector<cuda::MergeTree>{{.dst = 42,
                                           .inputs = {8, 24, none, none, none, none, none, none},
                                           .tokens = 2,
                                           .slots = 2}}));
}

}  // namespace
}  // namespace tributary::test
