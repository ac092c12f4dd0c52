// The many-rows kernel's own source on emulated threads, against float64 and bitwise against
// itself. emulation90.h and simt.h say what that shows: nothing about a device's speed or its
// memory model.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/sm90/many_rows.h"
#include "tests/kernels/cuda/emulation/attend_case.h"
#include "tests/kernels/cuda/sm90/emulation90.h"

namespace tributary::test {
namespace {

constexpr int kPastAll = 1 << 20;  // a position after every row

template <int kBlocks>
void kernel(const cuda::AttendLaunch& launch) {
  const CacheLayout& layout = launch.layout;
  const simt::TileMap map{launch.cache, std::int64_t{layout.layers} * layout.pages * kPageTokens,
                          layout.latent_dim()};
  cuda::sm90::many_rows<kBlocks>(launch, map.get());
}

void kernel_of_selected(const cuda::AttendLaunch& launch) {
  cuda::sm90::many_rows<1, true>(launch, nullptr);
}

template <int kBlocks>
void run_clusters(AttendCase& attend_case, int parts) {
  attend_case.run(kernel<kBlocks>, kBlocks * cuda::sm90::kRows, parts, cuda::sm90::kThreads,
                  cuda::sm90::kSharedBytes, kBlocks);
}

// By clusters of so many blocks.
void run(AttendCase& attend_case, int blocks, int parts) {
  if (blocks == 1) {
    run_clusters<1>(attend_case, parts);
  } else {
    run_clusters<2>(attend_case, parts);
  }
}

class ManyRowsOfHeads : public testing::TestWithParam<int> {};

TEST_P(ManyRowsOfHeads, AreNearFloat64) {
  const int heads = GetParam();
  AttendCase attend_case({.heads = heads}, static_cast<std::uint32_t>(heads));
  for (const int rows : {20, 140, 300}) {
    const std::size_t leaf = attend_case.add_leaf(rows);
    // The last tokens of their sequence.
    attend_case.add_task(leaf, attend_case.add_queries(1, 2), 1, rows - 1);
    attend_case.add_task(leaf, attend_case.add_queries(2, rows == 20 ? 8 : 0.1), 2, rows - 2);
  }
  for (const int blocks : {1, 2}) {
    SCOPED_TRACE(testing::Message() << "clusters of " << blocks);
    // Fewer parts than units: blocks go from unit to unit.
    run(attend_case, blocks, 2);
    attend_case.expect_near_exact();
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, ManyRowsOfHeads, testing::Values(33, 64, 65, 126, 128));

TEST(ManyRows, SeeWhatTheirPositionAllows) {
  AttendCase attend_case({.heads = 64}, 5);
  const std::size_t leaf = attend_case.add_leaf(200);
  const std::int64_t queries = attend_case.add_queries(3, 2);
  // Nothing; nothing, then 1 and 2 rows; over a border of pages; in a page of an odd number, with
  // later pages that nobody sees; everything.
  for (const int position : {-100, -2, 62, 126, kPastAll}) {
    attend_case.add_task(leaf, queries, 3, position);
  }
  for (const int blocks : {1, 2}) {
    run(attend_case, blocks, 3);
    attend_case.expect_near_exact();
  }
}

TEST(ManyRows, TakeWholeLeaves) {
  AttendCase attend_case({.heads = 64}, 7);
  const std::size_t leaf = attend_case.add_leaf(2048);
  for (const double deviation : {0.1, 8.0}) {
    attend_case.add_task(leaf, attend_case.add_queries(1, deviation), 1, kPastAll);
  }
  run(attend_case, 1, 1);
  attend_case.expect_near_exact();
}

TEST(ManyRows, FollowScoresThatRise) {
  AttendCase attend_case({.heads = 64}, 9);
  const std::int64_t query = attend_case.add_queries(1, 2);
  // Changes of head 0: a little per page, so that the peak stays and then follows; much; down
  // again.
  for (const double step : {3.0, 40.0, -6.0}) {
    std::vector<double> scores;
    for (int row = 0; row < 7 * kPageTokens; ++row) scores.push_back(step * (row / kPageTokens));
    attend_case.add_task(attend_case.add_leaf(scores, query), query, 1, kPastAll);
  }
  run(attend_case, 1, 1);
  attend_case.expect_near_exact();
}

TEST(ManyRows, TakeQueriesAtAnyStride) {
  for (const std::size_t padding : {2, 16}) {
    AttendCase attend_case({.heads = 66, .query_padding = padding}, 6);
    attend_case.add_task(attend_case.add_leaf(70), attend_case.add_queries(2, 2), 2, 68);
    run(attend_case, 2, 1);
    attend_case.expect_near_exact();
  }
}

// Tokens in one task, and each in its own.
struct SameTokens {
  std::size_t together;
  std::vector<std::size_t> alone;
};

TEST(ManyRows, BitsDoNotDependOnTokensBatchPagesOrClusters) {
  for (const int heads : {64, 126}) {
    AttendCase attend_case({.heads = heads}, 17);
    const std::size_t leaf = attend_case.add_leaf(150);
    const std::size_t copy = attend_case.copy_leaf(leaf);
    const std::int64_t queries = attend_case.add_queries(2, 2);
    std::vector<SameTokens> cases;
    // They see 64 and 65 rows; 128 and 129; 149 and 150; 0 and 1.
    for (const int position : {63, 127, 148, -1}) {
      SameTokens& same = cases.emplace_back();
      same.together = attend_case.add_task(leaf, queries, 2, position);
      for (int token = 0; token < 2; ++token) {
        same.alone.push_back(attend_case.add_task(token % 2 == 0 ? copy : leaf, queries + token, 1,
                                                  position + token));
      }
    }
    std::vector<State> expected;
    for (const int blocks : {1, 2}) {
      run(attend_case, blocks, blocks);
      for (std::size_t i = 0; i < cases.size() * 2; ++i) {
        const int token = static_cast<int>(i % 2);
        const State alone = attend_case.state(cases[i / 2].alone[i % 2], 0);
        if (blocks == 1) expected.push_back(alone);
        SCOPED_TRACE(testing::Message() << heads << " heads, case " << i / 2 << ", token " << token
                                        << ", clusters of " << blocks);
        EXPECT_TRUE(same_bits(alone, expected[i]));
        EXPECT_TRUE(same_bits(attend_case.state(cases[i / 2].together, token), expected[i]));
      }
    }
  }
}

TEST(ManyRows, MergesWhereItComputesHaveTheBitsOfTheMergeKernel) {
  // 66 rows of a token: of two tokens the last unit is short, and so is a cluster's second block.
  // The second leaf is empty to the first token.
  AttendCase attend_case({.heads = 66}, 43);
  expect_bits_of_merges(attend_case, {70, 1, 33, 129, 40}, 2, [](AttendCase& one, int level) {
    if (level % 2 == 1) {
      one.run_merged(kernel<2>, level, 2 * cuda::sm90::kRows, 2, cuda::sm90::kThreads,
                     cuda::sm90::kSharedBytes, 2);
    } else {
      one.run_merged(kernel<1>, level, cuda::sm90::kRows, 2, cuda::sm90::kThreads,
                     cuda::sm90::kSharedBytes, 1);
    }
  });
}

TEST(ManyRows, SelectedRowsHaveTheBitsOfALeafOfThemAlone) {
  for (const int heads : {40, 66}) {  // one unit a token, and two
    AttendCase attend_case({.heads = heads}, 19);
    expect_bits_of_leaves_alone(
        attend_case,
        [](AttendCase& one) {
          one.run(kernel_of_selected, cuda::sm90::kRows, 3, cuda::sm90::kThreads,
                  cuda::sm90::kSharedBytes);
        },
        [](AttendCase& one) { run(one, 2, 2); });
  }
}

TEST(ManyRows, SelectedRowsAreMergedWhereTheyAreComputed) {
  // Two units a token, each with a chain of leaves, in some of which the list has no row.
  AttendCase attend_case({.heads = 66}, 44);
  expect_bits_of_merges(attend_case, {70, 1, 33, 129, 40}, 1, [](AttendCase& one, int level) {
    one.select(one.tasks().front().query, {2, 35, 64, 65, 66, 100, 128});
    one.run_merged(kernel_of_selected, level, cuda::sm90::kRows, 2, cuda::sm90::kThreads,
                   cuda::sm90::kSharedBytes);
  });
}

TEST(ManyRows, WhatAnotherTokenSeesDoesNotPoison) {
  AttendCase attend_case({.heads = 64}, 18);
  expect_no_poison(attend_case, [](AttendCase& one) { run(one, 2, 1); });
}

}  // namespace
}  // namespace tributary::test
