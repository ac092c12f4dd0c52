#include "deploy/service/worker/leader/cost_meter.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/cost/built_in_costs.h"

namespace tributary {
namespace {

/// Two sequences on two workers, and a report of a round of both.
class CostMeterTest : public ::testing::Test {
 protected:
  CostMeterTest() {
    load_.add(std::vector<LeafRun>{{0, 0, 4}, {1, 4, 8}}, 0, 8 * 2048);
    load_.add(std::vector<LeafRun>{{1, 0, 4}}, 1, 4 * 2048);
    predicted_ = load_.round(Exchange::kAllToAll, RoundPrices(model_, 2)).slowest;
    report_.rounds = 1;
    report_.exchange = Exchange::kAllToAll;
    set(Phase::kQueryExchange, predicted_.queries_us);
    // The faster worker waits for the slower one.
    report_.members = 2;
    report_.worker_attend_us = {3 * predicted_.attend_us - 50, 3 * predicted_.attend_us};
    set(Phase::kAttend, 3 * predicted_.attend_us);
    set(Phase::kPartialExchange, predicted_.states_us + 50);
  }

  void set(Phase phase, double us) { report_.phase_us[static_cast<std::size_t>(phase)] = us; }
  void rounds(int n) {
    for (int i = 0; i < n; ++i) meter_.round_ended(report_, 2, 2, load_);
  }
  [[nodiscard]] double attend() const { return meter_.factors()[0]; }
  [[nodiscard]] double exchange() const { return meter_.factors()[1]; }
  [[nodiscard]] double combine() const { return meter_.factors()[2]; }

  CostModelConfig model_ = default_cost_model();
  PoolLoad load_{2, model_, 0};
  CostMeter meter_{model_, 2};
  WorkerTimes predicted_;
  RoundReport report_;
};

TEST_F(CostMeterTest, MeasuresRoundsOfAllSequencesAndNoOthers) {
  meter_.round_ended(report_, 1, 1, load_);  // one of two sequences
  meter_.round_ended(report_, 2, 5, load_);  // more than one token of a sequence
  report_.status = {ErrorCode::kWorkerFailed, "planted"};
  rounds(1);
  report_.status = {};
  EXPECT_EQ(meter_.factors(), (CostFactors{1, 1, 1}));

  rounds(1);
  EXPECT_GT(attend(), 1);
  EXPECT_LT(attend(), 1.02) << "one round is not the truth";
  rounds(1000);
  EXPECT_NEAR(attend(), 3, 1e-3);
  EXPECT_NEAR(exchange(), 1, 1e-3);
  EXPECT_EQ(combine(), 1);
}

TEST_F(CostMeterTest, StaysWithinItsBounds) {
  set(Phase::kAttend, 1e9 * predicted_.attend_us);
  rounds(2000);
  EXPECT_NEAR(attend(), CostMeter::kMost, 1e-6);
  set(Phase::kAttend, CostMeter::kShortestUs);
  rounds(2000);
  EXPECT_NEAR(attend(), CostMeter::kLeast, 1e-6);
}

TEST_F(CostMeterTest, DoesNotCountPhasesThatAreTooShortOrNotANumber) {
  set(Phase::kAttend, std::numeric_limits<double>::quiet_NaN());
  set(Phase::kQueryExchange, 0);
  set(Phase::kPartialExchange, 50);  // the waiting alone
  rounds(1);
  EXPECT_EQ(meter_.factors(), (CostFactors{1, 1, 1}));
}

}  // namespace
}  // namespace tributary
