// Arrivals at a rate, and the prefill tier's queue beside the closed form of M/D/1.
#include "deploy/predict/simulate/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/model/model_files.h"
#include "tests/deploy/predict/simulate/simulated_tier.h"

namespace tributary {
namespace {

TEST(Arrivals, KeepTheTracesGapsAtAnyRate) {
  const std::vector<TraceRequest> trace = {
      test::request_of(1000, 1, 1), test::request_of(1500, 1, 1), test::request_of(3000, 1, 1)};
  EXPECT_DOUBLE_EQ(Arrivals::own_rate(trace), 1);
  const Arrivals arrivals(trace, 10);
  // Gaps of 50 and 150 ms, then the mean gap of 100 ms, and again.
  const double expected[] = {0, 0.05, 0.2, 0.3, 0.35, 0.5, 0.6};
  for (int i = 0; i < 7; ++i) {
    EXPECT_NEAR(arrivals.time_s(i), expected[i], 1e-12);
    EXPECT_EQ(arrivals.request(i), static_cast<std::size_t>(i % 3));
  }
}

TEST(Arrivals, RequestsOfOneMomentComeAtEqualDistances) {
  const std::vector<TraceRequest> trace(3, test::request_of(5, 1, 1));
  EXPECT_EQ(Arrivals::own_rate(trace), 0);
  const Arrivals arrivals(trace, 4);
  EXPECT_DOUBLE_EQ(arrivals.time_s(3), 0.75);
}

TEST(Arrivals, NothingAndNoRateAreRefused) {
  EXPECT_TRUE(test::error_of([] { const Arrivals arrivals({}, 1); }));
  const std::vector<TraceRequest> trace = {test::request_of(0, 1, 1)};
  EXPECT_TRUE(test::error_of([&] { const Arrivals arrivals(trace, 0); }));
  EXPECT_TRUE(test::error_of([] { const PrefillServers servers({-1, 1}); }));
  EXPECT_TRUE(test::error_of([] { const PrefillServers servers({1, 0}); }));
}

TEST(PrefillServers, TakePromptsInOrderOfArrival) {
  PrefillServers servers({.servers = 2, .tokens_per_second = 100});
  EXPECT_DOUBLE_EQ(servers.serve(0, 300).end_s, 3);
  EXPECT_DOUBLE_EQ(servers.serve(0, 100).end_s, 1);
  const auto third = servers.serve(0.5, 100);
  EXPECT_DOUBLE_EQ(third.begin_s, 1);
  EXPECT_DOUBLE_EQ(third.end_s, 2);
  PrefillServers none({.servers = 0, .tokens_per_second = 1});
  EXPECT_DOUBLE_EQ(none.serve(7, 1000).end_s, 7);
}

// M/D/1: Poisson arrivals at rate l, service time s, load r = l s: mean wait r s / (2 (1 - r)).
// With 200,000 arrivals the mean's standard error is below 2% at loads up to 0.8 (waits are
// correlated over about 1 / (1 - r)^2 arrivals); the seed is fixed.
TEST(PrefillServers, OneServersMeanWaitIsThatOfMD1) {
  constexpr double kService = 0.1;
  for (const double load : {0.3, 0.6, 0.8}) {
    PrefillServers servers({.servers = 1, .tokens_per_second = 1000 / kService});
    test::Draws draws(17);
    double now = 0;
    double wait = 0;
    constexpr int kArrivals = 200'000;
    for (int i = 0; i < kArrivals; ++i) {
      now -= std::log(1 - draws.uniform()) * kService / load;
      wait += servers.serve(now, 1000).begin_s - now;
    }
    const double expected = load * kService / (2 * (1 - load));
    EXPECT_NEAR(wait / kArrivals, expected, 0.05 * expected) << load;
  }
}

}  // namespace
}  // namespace tributary
