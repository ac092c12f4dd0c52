#include "core/cost/cost_correction.h"

#include <gtest/gtest.h>

#include <limits>

namespace tributary {
namespace {

constexpr WorkerTimes kPredicted{
    .project_us = 7, .queries_us = 20, .attend_us = 100, .states_us = 20, .combine_us = 10};

TEST(CostCorrection, ComesToWhatRoundsTakeAndStaysThere) {
  CostCorrection correction;
  const WorkerTimes measured{
      .project_us = 700, .queries_us = 10, .attend_us = 150, .states_us = 10, .combine_us = 20};
  correction.observe(kPredicted, measured);
  EXPECT_GT(correction.factors().attend, 1);
  EXPECT_LT(correction.factors().attend, 1.01) << "one round is not the truth";
  for (int i = 0; i < 1000; ++i) correction.observe(kPredicted, measured);
  EXPECT_NEAR(correction.factors().attend, 1.5, 1e-3);
  EXPECT_NEAR(correction.factors().exchange, 0.5, 1e-3);
  EXPECT_NEAR(correction.factors().combine, 2, 1e-3);
  EXPECT_EQ(correction.observed(), 1001U);

  const MachineCosts base{.attend_us = 1,
                          .attend_overlap = 0.5,
                          .merge_us = 1,
                          .weight_byte_ns = 1,
                          .all_to_all_byte_ns = 1,
                          .network_message_us = 1,
                          .plan_item_us = 1};
  const MachineCosts costs = correction.corrected(base);
  EXPECT_NEAR(costs.attend_us, 1.5, 1e-3);
  EXPECT_EQ(costs.attend_overlap, 0.5) << "a share, not a time";
  EXPECT_NEAR(costs.merge_us, 2, 1e-3);
  EXPECT_NEAR(costs.weight_byte_ns, 1.5, 1e-3) << "leaves are projected while they are attended";
  EXPECT_NEAR(costs.all_to_all_byte_ns, 0.5, 1e-3);
  EXPECT_NEAR(costs.network_message_us, 0.5, 1e-3);
  EXPECT_EQ(costs.plan_item_us, 1);
}

TEST(CostCorrection, StaysWithinItsBoundsAndGoesOnFromWhereAnotherEnded) {
  CostCorrection correction;
  WorkerTimes slow = kPredicted;
  slow.attend_us = 1e9;
  slow.combine_us = CostCorrection::kShortestUs;
  for (int i = 0; i < 2000; ++i) correction.observe(kPredicted, slow);
  EXPECT_NEAR(correction.factors().attend, CostCorrection::kMost, 1e-6);
  EXPECT_NEAR(correction.factors().combine, 0.5, 1e-6);
  EXPECT_EQ(CostCorrection(correction.factors()).factors(), correction.factors());
  const CostCorrection strange(
      {.attend = 100, .exchange = std::numeric_limits<double>::quiet_NaN(), .combine = 1e-3});
  EXPECT_EQ(strange.factors(), (CostFactors{CostCorrection::kMost, 1, CostCorrection::kLeast}));
}

TEST(CostCorrection, WhatIsTooShortOrNoNumberCountsForNothing) {
  CostCorrection correction;
  correction.observe({}, kPredicted);
  correction.observe(kPredicted, {});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  correction.observe(kPredicted, {.attend_us = nan, .states_us = infinity, .combine_us = nan});
  EXPECT_EQ(correction.factors(), CostFactors{});
  EXPECT_EQ(correction.observed(), 0U);
}

}  // namespace
}  // namespace tributary
