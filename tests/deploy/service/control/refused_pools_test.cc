#include "deploy/service/control/refused_pools.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

using std::chrono::seconds;

/// A pool that tries again each second, for two minutes and a half.
TEST(RefusedPools, AreLoggedAtOnceAndThenEachMinute) {
  RefusedPools pools;
  const Time start{};
  std::vector<int> logged;
  std::string last;
  for (int second = 0; second < 150; ++second) {
    const std::string remote = "10.0.0.1:" + std::to_string(4000 + second);
    const std::string line = pools.note(remote, "layers is 61", start + seconds(second));
    if (line.empty()) continue;
    logged.push_back(second);
    last = line;
  }
  EXPECT_EQ(logged, (std::vector{0, 60, 120}));
  EXPECT_EQ(last, "a pool at 10.0.0.1:4120 was refused: layers is 61 (59 more times since)");
}

TEST(RefusedPools, AnotherHostOrReasonIsNews) {
  RefusedPools pools;
  const Time now{};
  EXPECT_NE(pools.note("10.0.0.1:1", "layers is 61", now), "");
  EXPECT_EQ(pools.note("10.0.0.1:2", "layers is 61", now), "");
  EXPECT_NE(pools.note("10.0.0.2:1", "layers is 61", now), "");
  EXPECT_NE(pools.note("10.0.0.1:3", "heads is 8", now), "");
}

}  // namespace
}  // namespace tributary
