// The generic attention kernel and the merge on emulated threads. simt.h says what that shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/plan/merge_tree.h"
#include "kernels/cuda/attend/generic.h"
#include "kernels/cuda/attend/merge.h"
#include "tests/kernels/cuda/emulation/attend_case.h"

namespace tributary::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename Row, typename Query>
void run(AttendCase& attend_case, int unit_rows, int parts) {
  using Kernel = cuda::Generic<Row, Query>;
  attend_case.run([](const cuda::AttendLaunch& launch) { Kernel(launch).run(); }, unit_rows, parts,
                  Kernel::kThreads, Kernel::kSharedBytes);
}

TEST(Generic, OfAnyWidthAndTypeIsNearFloat64) {
  for (AttendShape shape : {AttendShape{.heads = 3, .kv_lora_rank = 512, .qk_rope_head_dim = 64},
                            AttendShape{.heads = 2, .kv_lora_rank = 33, .qk_rope_head_dim = 0},
                            AttendShape{.heads = 5, .kv_lora_rank = 1, .qk_rope_head_dim = 2}}) {
    for (const RowFormat row : {RowFormat::kBF16, RowFormat::kF32}) {
      for (const DType query : {DType::kBF16, DType::kF32}) {
        shape.row_format = row;
        shape.query_dtype = query;
        AttendCase attend_case(shape, 31);
        for (const int rows : {1, 140}) {
          const std::size_t leaf = attend_case.add_leaf(rows);
          attend_case.add_task(leaf, attend_case.add_queries(2, 8), 2, rows - 2);
          attend_case.add_task(leaf, attend_case.add_queries(1, 0.1), 1, -1);
        }
        if (row == RowFormat::kBF16) {
          query == DType::kBF16 ? run<bf16, bf16>(attend_case, 4, 2)
                                : run<bf16, float>(attend_case, 4, 2);
        } else {
          query == DType::kBF16 ? run<float, bf16>(attend_case, 4, 2)
                                : run<float, float>(attend_case, 4, 2);
        }
        attend_case.expect_near_exact();
      }
    }
  }
}

constexpr int kHeads = 5;
constexpr int kWidth = 37;
constexpr StateShape kShape{kHeads, kWidth};
constexpr std::size_t kRecord = static_cast<std::size_t>(kHeads) * (kWidth + 1);

std::size_t lse_index(std::size_t record, int head) {
  return record * kRecord + static_cast<std::size_t>(kHeads * kWidth + head);
}

void launch(const std::vector<cuda::MergeTree>& trees, const StateShape& shape, float* states) {
  const cuda::MergeLaunch launch{
      .trees = trees.data(), .heads = shape.heads, .width = shape.width, .states = states};
  const auto heads = static_cast<unsigned>(shape.heads);
  const unsigned blocks_y = (heads + cuda::kMergeWarps - 1) / cuda::kMergeWarps;
  const simt::Counters counters = simt::run({.blocks = static_cast<unsigned>(trees.size()),
                                             .blocks_y = blocks_y,
                                             .threads = cuda::kMergeWarps * simt::kWarpLanes},
                                            [&launch] { cuda::merge_block(launch); });
  // Every thread waits for the kernel before, as the launch may be a dependent one.
  EXPECT_EQ(counters.waits_for_last,
            trees.size() * blocks_y * cuda::kMergeWarps * simt::kWarpLanes);
}

std::vector<float> merged(std::vector<float> states, const std::vector<MergeOp>& ops,
                          const StateShape& shape = kShape, int levels = 1) {
  for (const auto& trees : cuda::merge_trees(ops, levels)) launch(trees, shape, states.data());
  return states;
}

std::vector<float> random_states(std::size_t records, double lse_deviation) {
  std::mt19937 random(41);
  std::normal_distribution<float> normal;
  std::vector<float> states(records * kRecord);
  for (float& value : states) value = normal(random);
  for (std::size_t record = 0; record < records; ++record) {
    for (int head = 0; head < kHeads; ++head) {
      states[lse_index(record, head)] *= static_cast<float>(lse_deviation);
    }
  }
  return states;
}

void fill(std::vector<float>& states, std::size_t record, float o, float lse) {
  for (std::size_t i = 0; i < kRecord; ++i) {
    states[record * kRecord + i] = i < static_cast<std::size_t>(kHeads * kWidth) ? o : lse;
  }
}

void expect_same(const std::vector<float>& a, std::size_t i, const std::vector<float>& b,
                 std::size_t j) {
  for (std::size_t k = 0; k < kRecord; ++k) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i * kRecord + k]),
              std::bit_cast<std::uint32_t>(b[j * kRecord + k]))
        << "element " << k;
  }
}

TEST(Merge, IsTheWeightedMean) {
  for (const double deviation : {1.0, 20.0}) {
    const std::vector<float> states = random_states(5, deviation);
    const auto got = merged(states, {{.dst = 4, .left = 0, .right = 2, .tokens = 1}, {}});
    for (int head = 0; head < kHeads; ++head) {
      const double left = states[lse_index(0, head)];
      const double right = states[lse_index(2, head)];
      const double maximum = std::max(left, right);
      const double wl = std::exp(left - maximum);
      const double wr = std::exp(right - maximum);
      EXPECT_NEAR(got[lse_index(4, head)], maximum + std::log(wl + wr),
                  4e-7 * std::max(1.0, std::abs(maximum)));
      for (int c = 0; c < kWidth; ++c) {
        const auto at = static_cast<std::size_t>(head * kWidth + c);
        EXPECT_NEAR(got[4 * kRecord + at],
                    (wl * states[at] + wr * states[2 * kRecord + at]) / (wl + wr), 4e-6);
      }
    }
    for (std::size_t record = 0; record < 4; ++record) expect_same(got, record, states, record);
  }
}

TEST(Merge, SkipsWhatIsEmptyOrWeighsNothing) {
  for (const float lse : {-kInfinity, kInfinity, kNaN, -4000.0F}) {
    std::vector<float> states = random_states(6, 1);
    fill(states, 1, kNaN, lse);
    const auto got = merged(states, {{.dst = 3, .left = 0, .right = 1, .tokens = 1},
                                     {.dst = 4, .left = 1, .right = 0, .tokens = 1},
                                     {.dst = 5, .left = 1, .tokens = 1}});
    expect_same(got, 3, states, 0);
    expect_same(got, 4, states, 0);
    expect_same(got, 5, states, 1);  // a missing right side may hold anything
  }
  std::vector<float> states = random_states(4, 1);
  fill(states, 0, kNaN, -kInfinity);
  fill(states, 1, kNaN, kNaN);
  fill(states, 3, 0, -kInfinity);
  const auto got = merged(states, {{.dst = 2, .left = 0, .right = 1, .tokens = 1}});
  expect_same(got, 2, states, 3);
}

TEST(Merge, InPlaceHasTheSameBits) {
  const std::vector<float> states = random_states(9, 2);
  const auto apart = merged(states, {{.dst = 6, .left = 0, .right = 3, .tokens = 3}});
  const auto left = merged(states, {{.dst = 0, .left = 0, .right = 3, .tokens = 3}});
  const auto right = merged(states, {{.dst = 3, .left = 0, .right = 3, .tokens = 3}});
  for (std::size_t token = 0; token < 3; ++token) {
    expect_same(left, token, apart, 6 + token);
    expect_same(right, 3 + token, apart, 6 + token);
  }
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
