// The search finds the edge from either side, and ends if there is none.
#include "deploy/predict/simulate/rate_search.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

TEST(BracketRate, FindsTheEdgeFromEitherSide) {
  for (const double edge : {0.013, 1.0, 7.7, 900.0}) {
    int calls = 0;
    const RateBracket found = bracket_rate(4, 1.01, [&](double rate) {
      ++calls;
      return rate <= edge;
    });
    EXPECT_LE(found.holds, edge);
    EXPECT_GT(found.fails, edge);
    EXPECT_LE(found.fails / found.holds, 1.01);
    EXPECT_LT(calls, 30);
  }
}

TEST(BracketRate, EndsWithoutAnEdge) {
  const RateBracket always = bracket_rate(1, 1.01, [](double) { return true; });
  EXPECT_EQ(always.holds, 0x1p20);
  EXPECT_EQ(always.fails, 0);
  const RateBracket never = bracket_rate(1, 1.01, [](double) { return false; });
  EXPECT_EQ(never.holds, 0);
  EXPECT_EQ(never.fails, 0x1p-20);
}

}  // namespace
}  // namespace tributary
