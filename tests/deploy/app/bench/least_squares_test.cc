#include "deploy/app/bench/least_squares.h"

#include <gtest/gtest.h>

#include <vector>

namespace tributary::bench {
namespace {

TEST(LeastSquares, FindsTheConstantsOfExactSums) {
  std::vector<Observation> observations;
  for (const double a : {1.0, 3.0}) {
    for (const double b : {10.0, 4000.0, 1e7}) {
      observations.push_back({.units = {1, a, b}, .measured = 5 + 2 * a + 0.001 * b});
    }
  }
  const std::vector<double> found = fit(observations);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_NEAR(found[0], 5, 1e-6);
  EXPECT_NEAR(found[1], 2, 1e-6);
  EXPECT_NEAR(found[2], 0.001, 1e-9);
}

TEST(LeastSquares, AShortTimeCountsAsMuchAsALongOne) {
  // No constant fits both: the error is shared in proportion.
  const std::vector<Observation> observations = {{.units = {1}, .measured = 1},
                                                 {.units = {1}, .measured = 3}};
  EXPECT_NEAR(fit(observations)[0], 1.2, 1e-9);
}

TEST(LeastSquares, NothingIsBelowZero) {
  // The time falls with the second unit, whose cost must then be 0.
  const std::vector<Observation> observations = {{.units = {1, 1}, .measured = 3},
                                                 {.units = {1, 2}, .measured = 2},
                                                 {.units = {1, 3}, .measured = 1}};
  const std::vector<double> found = fit(observations);
  EXPECT_GT(found[0], 0);
  EXPECT_EQ(found[1], 0);
}

TEST(LeastSquares, UnitsThatNeverOccurCostNothing) {
  const std::vector<Observation> observations = {{.units = {0, 2}, .measured = 4},
                                                 {.units = {0, 3}, .measured = 6}};
  EXPECT_EQ(fit(observations), (std::vector<double>{0, 2}));
  EXPECT_TRUE(fit({}).empty());
}

}  // namespace
}  // namespace tributary::bench
