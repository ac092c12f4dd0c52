// A tier in time: nothing is lost, equal input gives equal output, and what closed forms say.
#include "deploy/predict/simulate/tier_simulation.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/core/model/model_files.h"
#include "tests/deploy/predict/simulate/simulated_tier.h"

namespace tributary {
namespace {

TierConfig small_tier() {
  TierConfig config;
  config.pool = test::small_pool(3, 200);
  config.pools = 2;
  config.rate = 40;
  config.warmup_s = 1;
  config.measure_s = 4;
  config.other_ms = 5;
  config.check_every = 50;
  return config;
}

void expect_conserved(const RequestCounts& c) {
  EXPECT_EQ(c.arrived, c.finished + c.running + c.in_prefill + c.waiting + c.refused + c.too_large);
}

TEST(TierSimulation, NothingIsLost) {
  const auto trace = test::small_trace(300);
  for (const SpreadPolicy spread :
       {SpreadPolicy::kSingle, SpreadPolicy::kAll, SpreadPolicy::kAuto}) {
    for (const double rate : {2.0, 60.0, 2000.0}) {
      TierConfig config = small_tier();
      config.spread = spread;
      config.rate = rate;
      config.max_waiting = 50;
      config.prefill = {.servers = 3, .tokens_per_second = 40'000};
      const TierResult r = simulate_tier(config, trace);
      SCOPED_TRACE(rate);
      expect_conserved(r.requests);
      EXPECT_NEAR(static_cast<double>(r.requests.arrived), rate * 5, 2);
      EXPECT_GT(r.requests.finished, 0);
      EXPECT_GT(r.checks, 0);
      EXPECT_LT(r.worst_check, 1e-9);
      EXPECT_TRUE(r.bytes_agree);
      EXPECT_GE(r.balance, 1);
      EXPECT_LE(r.occupancy, 1);
      EXPECT_LE(r.goodput_per_s, r.finished_per_s);
      EXPECT_LE(r.running, static_cast<double>(r.peak_running));
    }
  }
}

TEST(TierSimulation, TooManyThatWaitAreRefused) {
  TierConfig config = small_tier();
  config.rate = 3000;
  config.max_waiting = 20;
  const TierResult r = simulate_tier(config, test::small_trace(100));
  EXPECT_GT(r.requests.refused, 0);
  EXPECT_EQ(r.requests.waiting, 20);
  EXPECT_GT(r.room_wait_s.p99, 0);
  EXPECT_GT(r.occupancy, 0.8);
}

TEST(TierSimulation, WhatAnEmptyPoolCannotHoldIsCountedApart) {
  auto trace = test::small_trace(99);
  trace.push_back(test::request_of(trace.back().timestamp_ms + 1, 64 * 300, 1));
  TierConfig config = small_tier();
  config.spread = SpreadPolicy::kSingle;
  const TierResult r = simulate_tier(config, trace);
  EXPECT_EQ(r.requests.too_large, r.requests.arrived / 100);
  expect_conserved(r.requests);
  config.spread = SpreadPolicy::kAll;
  EXPECT_EQ(simulate_tier(config, trace).requests.too_large, 0);
  config.spread = SpreadPolicy::kSingle;
  const std::vector<TraceRequest> hopeless = {trace.back()};
  EXPECT_TRUE(test::error_of([&] { (void)simulate_tier(config, hopeless); }));
}

TEST(TierSimulation, EqualInputGivesEqualOutput) {
  const TierConfig config = small_tier();
  const TierResult a = simulate_tier(config, test::small_trace(300));
  const TierResult b = simulate_tier(config, test::small_trace(300));
  EXPECT_EQ(a.requests, b.requests);
  EXPECT_EQ(a.ttft_s, b.ttft_s);
  EXPECT_EQ(a.tpot_ms, b.tpot_ms);
  EXPECT_EQ(a.request_tpot_ms, b.request_tpot_ms);
  EXPECT_EQ(a.bytes_per_token, b.bytes_per_token);
  EXPECT_EQ(a.placements, b.placements);
  const TierResult other = simulate_tier(config, test::small_trace(300, 2));
  EXPECT_NE(a.tpot_ms, other.tpot_ms);
}

// One request at a time: its tokens come at the pool's predicted pace, and its first one after the
// prefill and one step.
TEST(TierSimulation, ALoneRequestsTimesAreThoseOfItsSteps) {
  TierConfig config = small_tier();
  config.pools = 1;
  config.spread = SpreadPolicy::kAll;
  config.in_flight = 1;
  config.warmup_s = 0;
  config.prefill = {.servers = 1, .tokens_per_second = 10'000};
  const std::vector<TraceRequest> trace = {test::request_of(0, 500, 10)};
  const TierResult r = simulate_tier(config, trace);

  SimulatedPool pool(config.pool, 1);
  ASSERT_TRUE(pool.admit(
      {.prompt_tokens = 500, .max_new_tokens = 10, .spread = config.spread, .idempotency_key = {}},
      0));
  std::vector<double> step_ms;
  for (int i = 0; i < 10; ++i) {
    step_ms.push_back(pool.begin_step().step_us * 1e-3 + config.other_ms);
    pool.end_step();
  }
  double later = 0;
  for (int i = 1; i < 10; ++i) later += step_ms[static_cast<std::size_t>(i)] / 9;
  EXPECT_NEAR(r.ttft_s.mean, 0.05 + step_ms[0] * 1e-3, 1e-9);
  EXPECT_NEAR(r.request_tpot_ms.mean, later, 1e-6);
  EXPECT_NEAR(r.request_tpot_ms.max, r.request_tpot_ms.mean, 1e-6);
  EXPECT_EQ(r.room_wait_s.max, 0);
}

TEST(TierSimulation, AFixedNumberStaysInFlight) {
  TierConfig config = small_tier();
  config.in_flight = 12;
  const TierResult r = simulate_tier(config, test::small_trace(300));
  EXPECT_EQ(r.requests.running + r.requests.in_prefill + r.requests.waiting, 12);
  expect_conserved(r.requests);
  // Between a sequence's end and the next one's first step lies no time.
  EXPECT_NEAR(r.running, 12, 1);
}

// Little's law over a long run: running = rate of admissions x time in a pool.
TEST(TierSimulation, RunningSequencesAreRateTimesResidence) {
  TierConfig config = small_tier();
  config.rate = 30;
  config.warmup_s = 10;
  config.measure_s = 60;
  config.check_every = 0;
  const auto trace = test::small_trace(400);
  const TierResult r = simulate_tier(config, trace);
  double tokens = 0;
  for (const TraceRequest& t : trace) tokens += static_cast<double>(t.output_length) / 400;
  EXPECT_NEAR(r.tokens_per_s, 30 * tokens, 0.02 * 30 * tokens);
  EXPECT_NEAR(r.running, r.tokens_per_s * r.tpot_ms.mean * 1e-3, 0.03 * r.running);
}

TEST(TierSimulation, MorePoolsServeMore) {
  TierConfig config = small_tier();
  config.rate = 300;
  const auto trace = test::small_trace(300);
  const TierResult two = simulate_tier(config, trace);
  config.pools = 4;
  const TierResult four = simulate_tier(config, trace);
  EXPECT_GT(four.finished_per_s, 1.2 * two.finished_per_s);
}

TEST(TierSimulation, BadConfigurationsAreRefused) {
  const auto trace = test::small_trace(10);
  const auto refused = [&](auto change) {
    TierConfig config = small_tier();
    change(config);
    return test::error_of([&] { (void)simulate_tier(config, trace); }).has_value();
  };
  EXPECT_FALSE(refused([](TierConfig&) {}));
  EXPECT_TRUE(refused([](TierConfig& c) { c.pools = 0; }));
  EXPECT_TRUE(refused([](TierConfig& c) { c.rate = 0; }));
  EXPECT_TRUE(refused([](TierConfig& c) { c.measure_s = 0; }));
  EXPECT_TRUE(refused([](TierConfig& c) { c.pool.workers = 0; }));
  EXPECT_TRUE(refused([](TierConfig& c) { c.pool.cost.layers = 0; }));
}

}  // namespace
}  // namespace tributary
