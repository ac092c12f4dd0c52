// The picture of a tier: rates between two samples, what fits, what an operator must notice.
#include "deploy/app/top/top_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error.h"

namespace tributary {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

TierSample sample(int pools, int workers) {
  TierSample tier;
  tier.version = "1.2.3";
  tier.ready = true;
  tier.uptime_ms = 3'725'000;
  for (int p = 0; p < pools; ++p) {
    TierSample::Pool pool;
    pool.name = fmt::format("pool{}", p);
    pool.run = "1";
    pool.state = "serving";
    pool.metrics.emplace();
    for (int w = 0; w < workers; ++w) {
      pool.workers.push_back({.rank = w,
                              .host = "host",
                              .backend = "cpu",
                              .state = "serving",
                              .pages_total = 100,
                              .pages_used = 10 * w,
                              .pages_reserved = 1,
                              .homes = w,
                              .heartbeat_age_ms = 250});
    }
    tier.pools.push_back(pool);
  }
  return tier;
}

std::string picture(const TierSample& before, const TierSample& now) {
  return fmt::format("{}", fmt::join(top_lines("http://c:1", before, now), "\n"));
}

TEST(TopText, RatesAndTimesAreThoseBetweenTheSamples) {
  const TierSample before = sample(1, 2);
  TierSample now = before;
  now.taken = before.taken + std::chrono::seconds(2);
  now.admitted = 6;
  PoolMetrics& metrics = *now.pools[0].metrics;
  metrics.tokens = 500;
  metrics.rounds = 20;
  for (int i = 0; i < 10; ++i) {
    metrics.step_seconds.observe(4e-3);  // a bucket of 3 .. 5 ms, the middle of which is 4
    metrics.phase_seconds[static_cast<std::size_t>(Phase::kAttend)].observe(3e-3);
    metrics.phase_seconds[static_cast<std::size_t>(Phase::kCombine)].observe(1e-3);
    metrics.batch.observe(4);
  }
  EXPECT_THAT(
      picture(before, now),
      AllOf(HasSubstr("tributary 1.2.3  http://c:1  ready  up 1h02m"), HasSubstr("admitted 3/s"),
            HasSubstr("250 tokens/s   10 rounds/s of 4 items"), HasSubstr("step p50 4.00ms"),
            HasSubstr("75%"), HasSubstr("25%"), HasSubstr("3.00ms"), HasSubstr("1.00ms")));
  // Nothing happened since: no rates, no times.
  TierSample later = now;
  later.taken += std::chrono::seconds(1);
  EXPECT_THAT(picture(now, later), AllOf(HasSubstr("0 tokens/s"), HasSubstr("step p50 - p99 -")));
}

TEST(TopText, APoolThatStartedAgainHasRatesOfItsNewRun) {
  TierSample before = sample(1, 1);
  before.pools[0].metrics->tokens = 1'000'000;
  TierSample now = sample(1, 1);
  now.taken = before.taken + std::chrono::seconds(1);
  now.pools[0].run = "2";
  now.pools[0].metrics->tokens = 7;
  EXPECT_THAT(picture(before, now), HasSubstr("  7 tokens/s"));
}

TEST(TopText, WorkersThatNeedALookComeFirst) {
  TierSample now = sample(1, 4);
  now.pools[0].workers[1].state = "silent";
  const std::string text = picture(now, now);
  const auto place = [&](const std::string& line) { return text.find(line); };
  EXPECT_LT(place("   1  silent"), place("   3  serving"));
  EXPECT_LT(place("   3  serving"), place("   0  serving"));
  EXPECT_THAT(text, HasSubstr("[######-             ]  30%        1%      3  250.0ms  host"));
}

TEST(TopText, WhatIsWrongIsSaid) {
  TierSample now = sample(1, 1);
  EXPECT_THAT(picture(now, now), Not(HasSubstr("WRONG")));
  now.pools[0].metrics->canaries = 10;
  now.pools[0].metrics->canary_failures = 2;
  EXPECT_THAT(picture(now, now), HasSubstr("2 WRONG of 10 recomputed"));
  now.ready = false;
  now.pools[0].state = "lost";
  now.pools[0].lost_because = "no heartbeat";
  EXPECT_THAT(picture(now, now), AllOf(HasSubstr("NOT READY"), HasSubstr("pool pool0: lost"),
                                       HasSubstr("no heartbeat"), Not(HasSubstr("rank"))));
  now.pools.clear();
  EXPECT_THAT(picture(now, now), HasSubstr("no pool has registered"));
}

TEST(TopText, EverythingFitsIntoEightyColumnsAndTheRowsThereAre) {
  TierSample now = sample(5, 30);
  now.pools[0].name = std::string(200, 'n');
  now.pools[0].workers[0].host = "a\033[2Jb" + std::string(100, 'h');
  now.pools[0].metrics->tokens = ~std::uint64_t{0};
  now.pools[0].metrics->ingested_bytes = ~std::uint64_t{0};
  TierSample before = sample(5, 30);
  before.taken = now.taken - std::chrono::milliseconds(100);
  std::vector<std::string> lines = top_lines("http://c:1", before, now);
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), kTopWidth) << line;
    EXPECT_THAT(line, Not(HasSubstr("\033")));
  }
  const std::size_t all = lines.size();
  std::size_t first = 0;
  EXPECT_THAT(fit_lines(lines, all + 1, 80, first), SizeIs(all + 1));
  EXPECT_EQ(fit_lines(lines, all + 1, 80, first).back(), "q ends");
  std::vector<std::string> cut = fit_lines(lines, 23, 40, first);
  EXPECT_THAT(cut, SizeIs(23));
  EXPECT_EQ(cut.front(), lines.front().substr(0, 40));
  EXPECT_EQ(cut.back(),
            fmt::format("lines 1 to 22 of {}; arrows and pages scroll, q ends", all).substr(0, 40));
  first = 10'000;  // beyond the end
  cut = fit_lines(lines, 23, 80, first);
  EXPECT_EQ(first, all - 22);
  EXPECT_EQ(cut[21], lines.back());
  EXPECT_THAT(fit_lines(lines, 0, 0, first), SizeIs(2));
}

TEST(TierSample, WhatNoControlPlaneAnswersIsRefused) {
  for (const char* text : {"", "[]", "{}", R"({"version": 1})"}) {
    EXPECT_THROW((void)read_tier(text, ""), Error) << text;
  }
}

}  // namespace
}  // namespace tributary
