#include "deploy/service/worker/leader/accusations.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

namespace tributary {
namespace {

std::optional<int> verdict(const std::map<int, std::vector<int>>& words) {
  Accusations accusations;
  for (const auto& [rank, others] : words) accusations.add(1, rank, others);
  return accusations.verdict();
}

TEST(Accusations, NobodyGoesForNothing) {
  EXPECT_EQ(verdict({}), std::nullopt);
  EXPECT_EQ(verdict({{1, {}}, {2, {}}}), std::nullopt);
}

TEST(Accusations, WhoWasWaitedForByMostGoes) {
  EXPECT_EQ(verdict({{0, {2}}, {1, {2}}, {3, {2}}, {2, {1}}}), 2);
  EXPECT_EQ(verdict({{0, {1, 3}}, {2, {1}}}), 1);
}

TEST(Accusations, OneEndOfALinkGoesNeverBoth) {
  EXPECT_EQ(verdict({{1, {2}}, {2, {1}}}), 2);
  EXPECT_EQ(verdict({{2, {1}}}), 1) << "cut in one direction";
  EXPECT_EQ(verdict({{1, {2, 3}}, {2, {1}}, {3, {1}}}), 1) << "one worker's links to all but 0";
}

TEST(Accusations, TheLeaderStays) {
  EXPECT_EQ(verdict({{0, {3}}, {3, {0}}}), 3);
  EXPECT_EQ(verdict({{3, {0}}}), 3);
}

TEST(Accusations, AWorkerIsNamedOnce) {
  EXPECT_EQ(verdict({{3, {1, 1, 1}}, {0, {2}}, {4, {2}}}), 2);
}

TEST(Accusations, WordsAreAboutOneGeneration) {
  Accusations accusations;
  accusations.add(1, 1, std::vector{3});
  accusations.add(2, 0, std::vector{2});  // it has gone on before this was said of the leader
  EXPECT_EQ(accusations.verdict(), 2);
  accusations.begin(3);
  EXPECT_EQ(accusations.verdict(), std::nullopt);
  accusations.add(2, 1, std::vector{2});
  EXPECT_EQ(accusations.verdict(), std::nullopt) << "late";
}

TEST(Accusations, TheLastWordOfAWorkerCounts) {
  Accusations accusations;
  accusations.add(1, 1, std::vector{2});
  accusations.add(1, 1, std::vector{3});
  EXPECT_EQ(accusations.verdict(), 3);
}

}  // namespace
}  // namespace tributary
