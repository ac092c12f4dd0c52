// The few-rows kernel's own source on emulated threads, against float64 and bitwise against itself.
// simt.h says what that shows and what it does not.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/attend/few_rows.h"
#include "tests/kernels/cuda/emulation/attend_case.h"

namespace tributary::test {
namespace {

constexpr int kPastAll = 1 << 20;  // a position after every row

template <typename Kernel>
auto with_stages(int stages) {
  return [stages](cuda::AttendLaunch launch) {
    launch.stages = stages;
    Kernel(launch).run();
  };
}

template <int kRowTiles, bool kSelected = false>
simt::Counters run_tiles(AttendCase& attend_case, int stages, int parts) {
  using Kernel = cuda::FewRows<kRowTiles, kSelected>;
  return attend_case.run(with_stages<Kernel>(stages), Kernel::kRows, parts, Kernel::kThreads,
                         cuda::few_rows_bytes(kRowTiles, stages));
}

simt::Counters run(AttendCase& attend_case, int row_tiles, int stages, int parts) {
  switch (row_tiles) {
    case 1:
      return run_tiles<1>(attend_case, stages, parts);
    case 2:
      return run_tiles<2>(attend_case, stages, parts);
    default:
      return run_tiles<4>(attend_case, stages, parts);
  }
}

class FewRowsOfHeads : public testing::TestWithParam<int> {};

TEST_P(FewRowsOfHeads, AreNearFloat64) {
  const int heads = GetParam();
  AttendCase attend_case({.heads = heads}, static_cast<std::uint32_t>(heads));
  int combinations = 0;
  for (const int rows : {20, 140, 300}) {
    const std::size_t leaf = attend_case.add_leaf(rows);
    for (const int tokens : {1, 2, 4}) {
      ++combinations;
      for (const int i : {0, 1, 2}) {
        if (heads > 16 && i != combinations % 3) continue;  // a third of them takes long enough
        const double deviation = std::array{0.1, 2.0, 8.0}[static_cast<std::size_t>(i)];
        // The last tokens of their sequence.
        attend_case.add_task(leaf, attend_case.add_queries(tokens, deviation), tokens,
                             rows - tokens);
      }
    }
  }
  // Units of as many rows as a launch would take, over fewer parts than units.
  const int tiles = heads <= 4 ? 1 : heads <= 16 ? 2 : 4;
  run(attend_case, tiles, 2, 3);
  attend_case.expect_near_exact();
}

INSTANTIATE_TEST_SUITE_P(Heads, FewRowsOfHeads, testing::Values(1, 3, 9, 16, 63, 64, 126, 128));

// Four tokens in one task; the two in the middle in another; each in its own.
struct SameTokens {
  std::size_t together, pair;
  std::vector<std::size_t> alone;
};

TEST(FewRows, BitsDoNotDependOnTokensBatchPagesOrCut) {
  for (const int heads : {3, 20}) {  // one unit of rows and several
    AttendCase attend_case({.heads = heads}, 17);
    const std::size_t leaf = attend_case.add_leaf(140);
    const std::size_t copy = attend_case.copy_leaf(leaf);
    const std::int64_t queries = attend_case.add_queries(4, 2);
    std::vector<SameTokens> cases;
    // They see 62 to 65 rows, over a page's border; 0, 0, 1, 2; 138, 139, 140 and 140.
    for (const int position : {61, -2, 137}) {
      SameTokens& same = cases.emplace_back();
      same.together = attend_case.add_task(leaf, queries, 4, position);
      same.pair = attend_case.add_task(copy, queries + 1, 2, position + 1);
      for (int token = 0; token < 4; ++token) {
        same.alone.push_back(attend_case.add_task(token % 2 == 0 ? leaf : copy, queries + token, 1,
                                                  position + token));
      }
    }
    std::vector<State> expected;
    for (const int tiles : cuda::kRowTileCounts) {
      run(attend_case, tiles, 6 - tiles, 1 + tiles);
      attend_case.expect_near_exact();
      for (std::size_t i = 0; i < cases.size() * 4; ++i) {
        const SameTokens& same = cases[i / 4];
        const int token = static_cast<int>(i % 4);
        const State alone = attend_case.state(same.alone[i % 4], 0);
        if (tiles == 1) expected.push_back(alone);
        SCOPED_TRACE(testing::Message() << heads << " heads, case " << i / 4 << ", token " << token
                                        << ", " << tiles << " tiles of rows");
        EXPECT_TRUE(same_bits(alone, expected[i]));
        EXPECT_TRUE(same_bits(attend_case.state(same.together, token), expected[i]));
        if (token == 1 || token == 2) {
          EXPECT_TRUE(same_bits(attend_case.state(same.pair, token - 1), expected[i]));
        }
      }
    }
  }
}

TEST(FewRows, OfHardScoresAreNearFloat64) {
  AttendCase attend_case({.heads = 2}, 22);
  const std::int64_t query = attend_case.add_queries(1, 1);
  constexpr std::size_t kRows = 200;
  std::vector<std::vector<double>> cases;
  // The maximum rises with every row: each tile rescales all before it. And falls.
  std::vector<double> rising(kRows);
  for (std::size_t r = 0; r < kRows; ++r) rising[r] = 0.3 * static_cast<double>(r) - 20;
  cases.push_back(rising);
  cases.emplace_back(rising.rbegin(), rising.rend());
  // One row outweighs all others: first, inside, last.
  for (const std::size_t at : {std::size_t{0}, std::size_t{100}, kRows - 1}) {
    cases.emplace_back(kRows, -20.0)[at] = 30;
  }
  // All alike, and far from 0.
  cases.emplace_back(kRows, -150.0);
  for (const std::vector<double>& scores : cases) {
    attend_case.add_task(attend_case.add_leaf(scores, query), query, 1, kPastAll);
  }
  run(attend_case, 1, 3, 2);
  attend_case.expect_near_exact();
}

TEST(FewRows, WhatAnotherTokenSeesDoesNotPoison) {
  AttendCase attend_case({.heads = 5}, 18);
  expect_no_poison(attend_case, [](AttendCase& one) { run(one, 2, 3, 1); });
}

TEST(FewRows, MergesWhereItComputesHaveTheBitsOfTheMergeKernel) {
  // 48 rows: units of 16 in a chain each, and one of 64 with empty rows. The second leaf is empty
  // to the first token.
  AttendCase attend_case({.heads = 16}, 41);
  expect_bits_of_merges(attend_case, {70, 2, 33, 64, 40}, 3, [](AttendCase& one, int level) {
    const auto merged = [&]<typename Kernel>(int parts) {
      one.run_merged(with_stages<Kernel>(2), level, Kernel::kRows, parts, Kernel::kThreads,
                     cuda::few_rows_bytes(Kernel::kRows / 16, 2));
    };
    if (level == 1) {
      merged.template operator()<cuda::FewRows<2>>(1);
    } else {
      merged.template operator()<cuda::FewRows<1>>(2);
    }
  });
}

TEST(FewRows, InTheFastOrderIsNearFloat64) {
  using Kernel = cuda::FewRows<1>;
  // 12 heads and 4 tokens are three units of rows; lengths end inside pages.
  AttendCase attend_case({.heads = 12}, 23);
  for (const int rows : {500, 64, 1, 333}) {
    attend_case.add_task(attend_case.add_leaf(rows), attend_case.add_queries(4, 2), 4, rows - 3);
  }
  for (const int parts : {1, 2, 16}) {
    attend_case.run_fast(with_stages<Kernel>(2), Kernel::kRows, parts, Kernel::kThreads,
                         cuda::few_rows_bytes(1, 2));
    attend_case.expect_near_exact();
  }
}

TEST(FewRows, SeesNothingBeforeTheLeaf) {
  AttendCase attend_case({.heads = 16}, 19);
  const std::size_t leaf = attend_case.add_leaf(33);
  const std::int64_t queries = attend_case.add_queries(4, 1);
  attend_case.add_task(leaf, queries, 4, -4);        // nothing at all
  attend_case.add_task(leaf, queries, 4, kPastAll);  // everything
  attend_case.add_task(leaf, queries, 4, -40);
  attend_case.add_task(leaf, queries, 4, -2);  // two of four see something
  attend_case.keep_order();  // so that a task that sees nothing precedes one that does
  run(attend_case, 1, 2, 2);
  attend_case.expect_near_exact();
}

TEST(FewRows, TakesQueriesOfAnyAlignment) {
  AttendCase attend_case({.heads = 2, .query_padding = 2}, 20);
  const std::size_t leaf = attend_case.add_leaf(40);
  attend_case.add_task(leaf, attend_case.add_queries(3, 1), 3, 37);
  run(attend_case, 1, 2, 1);
  attend_case.expect_near_exact();
}

TEST(FewRows, ReadsTheRowsOnceAndSharedMemoryWithoutConflicts) {
  AttendCase attend_case({.heads = 64}, 21);
  attend_case.add_task(attend_case.add_leaf(100), attend_case.add_queries(1, 1), 1, kPastAll);
  const simt::Counters counters = run(attend_case, 4, 2, 1);
  EXPECT_EQ(counters.copied_bytes, 100 * attend_case.row_bytes());
  EXPECT_GT(counters.matrix_loads, 0U);
  EXPECT_EQ(counters.matrix_conflicts, 0U);
}

TEST(FewRows, FitsTheSharedMemoryOfEveryArchitecture) {
  // The most shared memory of a block: sm_80 163 KiB, sm_86 and sm_89 99 KiB, sm_90 and sm_100 227
  // KiB.
  constexpr std::size_t kKiB = 1024;
  EXPECT_EQ(cuda::few_rows_stages(1, 163 * kKiB), 3);
  EXPECT_EQ(cuda::few_rows_stages(4, 163 * kKiB), 2);
  EXPECT_EQ(cuda::few_rows_stages(1, 99 * kKiB), 2);
  EXPECT_EQ(cuda::few_rows_stages(2, 99 * kKiB), 0);
  EXPECT_EQ(cuda::few_rows_stages(1, 227 * kKiB), 5);
  EXPECT_EQ(cuda::few_rows_stages(2, 227 * kKiB), 5);
  EXPECT_EQ(cuda::few_rows_stages(4, 227 * kKiB), 4);
  // Two blocks of a multiprocessor.
  EXPECT_EQ(cuda::few_rows_blocks(1, 227 * kKiB), 2);
  EXPECT_EQ(cuda::few_rows_stages(1, 227 * kKiB, 2), 2);
  EXPECT_EQ(cuda::few_rows_blocks(2, 227 * kKiB), 1);
  EXPECT_EQ(cuda::few_rows_blocks(1, 163 * kKiB), 1);
}

template <int kRowTiles>
void expect_selections(int heads, int stages) {
  AttendCase attend_case({.heads = heads}, 51);
  expect_bits_of_leaves_alone(
      attend_case, [=](AttendCase& one) { run_tiles<kRowTiles, true>(one, stages, 3); },
      [=](AttendCase& one) { run_tiles<kRowTiles>(one, 2, 2); });
}

TEST(FewRows, SelectedRowsHaveTheBitsOfALeafOfThemAlone) {
  expect_selections<1>(9, 5);
  expect_selections<2>(20, 3);
  expect_selections<4>(40, 2);
}

}  // namespace
}  // namespace tributary::test
