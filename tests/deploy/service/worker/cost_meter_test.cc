#include "deploy/service/worker/cost_meter.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/cost/built_in_costs.h"

namespace tributary {
namespace {

TEST(CostMeter, LearnsFromRoundsOfAllSequencesAndOfNoOthers) {
  const CostModelConfig model = default_cost_model();
  CostMeter meter(model, 2);
  PoolLoad load(2, model.workers_per_node, model.leaf_tokens, 0);
  load.add(std::vector<LeafRun>{{0, 0, 4}, {1, 4, 8}}, 0, 8 * 2048);
  load.add(std::vector<LeafRun>{{1, 0, 4}}, 1, 4 * 2048);
  const RoundPrices prices(model, 2);
  const WorkerTimes predicted = load.round(Exchange::kAllToAll, prices).slowest;

  RoundReport report;
  report.rounds = 1;
  report.exchange = Exchange::kAllToAll;
  report.worker_attend_us = {3 * predicted.attend_us - 50, 3 * predicted.attend_us};
  const auto set = [&](Phase phase, double us) {
    report.phase_us[static_cast<std::size_t>(phase)] = us;
  };
  set(Phase::kQueryExchange, predicted.queries_us);
  set(Phase::kAttend, 3 * predicted.attend_us);
  set(Phase::kPartialExchange, predicted.states_us + 50);  // the faster worker waits for the slower
  set(Phase::kCombine, 0);

  EXPECT_FALSE(meter.round_ended(report, 1, 1, load)) << "one of two sequences";
  EXPECT_FALSE(meter.round_ended(report, 2, 5, load)) << "more than a token of one";
  report.status = {ErrorCode::kWorkerFailed, "planted"};
  EXPECT_FALSE(meter.round_ended(report, 2, 2, load));
  report.status = {};
  EXPECT_EQ(meter.factors(), CostFactors{});

  int corrections = 0;
  for (int i = 0; i < 1024; ++i) corrections += meter.round_ended(report, 2, 2, load) ? 1 : 0;
  EXPECT_EQ(corrections, 8);
  EXPECT_NEAR(meter.factors().attend, 3, 0.01);
  EXPECT_NEAR(meter.factors().exchange, 1, 0.01);
  EXPECT_EQ(meter.factors().combine, 1);
  EXPECT_NEAR(meter.costs().attend_gflop_us, 3 * model.costs.attend_gflop_us,
              0.02 * model.costs.attend_gflop_us);
}

TEST(CostMeter, BeginsWithWhatAnotherLearnedUnlessItHasSeenRounds) {
  const CostModelConfig model = default_cost_model();
  CostMeter meter(model, 1);
  EXPECT_FALSE(meter.take_over({})) << "nothing changes";
  const CostFactors learned{.attend = 2, .exchange = 0.5, .combine = 1.5};
  EXPECT_TRUE(meter.take_over(learned));
  EXPECT_EQ(meter.factors(), learned);
  EXPECT_EQ(meter.costs().attend_us, 2 * model.costs.attend_us);
  EXPECT_FALSE(meter.take_over(learned));
  EXPECT_TRUE(meter.take_over({.attend = 100, .exchange = 0.5, .combine = 1.5}));
  EXPECT_EQ(meter.factors().attend, CostCorrection::kMost);

  PoolLoad load(1, model.workers_per_node, model.leaf_tokens, 0);
  load.add(std::vector<LeafRun>{{0, 0, 8}}, 0, 8 * 2048);
  RoundReport report;
  report.rounds = 1;
  report.exchange = Exchange::kAllToAll;
  report.phase_us[static_cast<std::size_t>(Phase::kAttend)] = 1e6;
  report.worker_attend_us = {1e6};
  (void)meter.round_ended(report, 1, 1, load);
  EXPECT_FALSE(meter.take_over(learned)) << "what it sees itself is newer";
  EXPECT_NE(meter.factors(), learned);
}

}  // namespace
}  // namespace tributary
