// The clock beside predict_step on the full plan, while random sequences come, grow and go.
#include "deploy/predict/simulate/round_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/sequencer/sequencer.h"
#include "tests/core/model/model_files.h"
#include "tests/deploy/predict/simulate/simulated_tier.h"

namespace tributary {
namespace {

TEST(RoundClock, RefusesWhatPredictStepRefuses) {
  CostModelConfig config = test::small_cost();
  EXPECT_TRUE(test::error_of([&] { const RoundClock clock(config, 0, Exchange::kAuto); }));
  config.layers = 0;
  EXPECT_TRUE(test::error_of([&] { const RoundClock clock(config, 1, Exchange::kAuto); }));
}

TEST(RoundClock, AnEmptyPoolHasOnlyTheFixedCosts) {
  const CostModelConfig config = test::small_cost();
  const RoundTime time = RoundClock(config, 4, Exchange::kAuto).time();
  EXPECT_DOUBLE_EQ(time.step_us, config.costs.step_us + 3 * config.costs.round_us);
  EXPECT_EQ(time.bytes, LinkBytes{});
}

/// Every constant counts, so that none is forgotten.
CostModelConfig all_constants() {
  CostModelConfig config = test::small_cost();
  double value = 0.5;
  for_each_cost(config.costs, [&](const char*, double& cost) { cost = value += 0.01; });
  config.projection = {.weight_bytes = 1e4, .token_gflop = 0.25};
  return config;
}

class RoundClockPlans : public testing::TestWithParam<Exchange> {};

TEST_P(RoundClockPlans, TimeIsThatOfTheFullPlan) {
  constexpr int kWorkers = 5;
  constexpr int kLeaf = 64;
  const CostModelConfig config = all_constants();
  Sequencer sequencer({.placement = {.workers = kWorkers, .model = config},
                       .pages_per_worker = 4000,
                       .incarnation = 1});
  RoundClock clock(config, kWorkers, GetParam());
  test::Draws draws(5);
  constexpr SpreadPolicy kPolicies[] = {SpreadPolicy::kAuto, SpreadPolicy::kSingle,
                                        SpreadPolicy::kAll};
  std::vector<SequenceId> ids;
  Routing routing;
  for (int step = 0; step < 120; ++step) {
    if (draws.uniform() < 0.5) {
      const auto id = sequencer.sequences().admit({.prompt_tokens = draws.between(1, 40 * kLeaf),
                                                   .max_new_tokens = 200,
                                                   .spread = kPolicies[draws.between(0, 2)],
                                                   .idempotency_key = {}});
      ASSERT_TRUE(id);
      ids.push_back(*id);
    }
    if (ids.empty()) continue;
    std::vector<StepItem> requests;
    for (const SequenceId id : ids) requests.push_back({id, 1});
    sequencer.steps().open(requests);
    sequencer.steps().order_round(requests);
    const Order order = sequencer.take_order();
    for (const SequenceId id : ids) {
      const Sequence& s = sequencer.ledger().table().at(id);
      // New ones, and those that open a leaf.
      if (s.length == s.prompt_tokens || s.length % kLeaf == 0) clock.add(s, s.length + 1);
    }
    build_routing(sequencer.ledger().table(), order.step, kWorkers, routing);
    const RoundTime time = clock.time();
    const StepPrediction plan = predict_step(config, routing, kWorkers, time.exchange);
    ASSERT_NEAR(time.step_us, plan.step_us, 1e-9 * plan.step_us);
    for (std::size_t p = 0; p < kPhases; ++p) {
      ASSERT_NEAR(time.phase_us[p], plan.phase_us[p], 1e-9 * plan.step_us);
    }
    EXPECT_EQ(clock.sequences(), std::ssize(ids));
    const auto rows = routing.worker_rows;
    std::int64_t sum = 0;
    for (const std::int64_t r : rows) sum += r;
    ASSERT_DOUBLE_EQ(clock.balance(), static_cast<double>(std::ranges::max(rows)) * kWorkers /
                                          static_cast<double>(sum));
    for (const SequenceId id : ids) sequencer.steps().commit(id, 1);
    std::erase_if(ids, [&](SequenceId id) {
      const Sequence& s = sequencer.ledger().table().at(id);
      const bool ends = s.length == s.limit_tokens || draws.uniform() < 0.02;
      if (ends || s.length % kLeaf == 0) clock.remove(s, s.length);
      if (ends) sequencer.sequences().free(id);
      return ends;
    });
    clock.tick();
  }
  EXPECT_GT(ids.size(), 10U);
}

INSTANTIATE_TEST_SUITE_P(Exchanges, RoundClockPlans,
                         testing::Values(Exchange::kAuto, Exchange::kAllGather,
                                         Exchange::kAllToAll),
                         [](const auto& info) {
                           return "exchange" + std::to_string(static_cast<int>(info.param));
                         });

}  // namespace
}  // namespace tributary
