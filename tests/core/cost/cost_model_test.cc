// Predicted times: the sums that the constants and the plan give, worked out by hand.
#include "core/cost/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/placement/exchange_load.h"
#include "core/sequencer/uniform_batch.h"

namespace tributary {
namespace {

constexpr AttentionShape kShape{.heads = 4,
                                .kv_lora_rank = 32,
                                .qk_rope_head_dim = 16,
                                .row_format = RowFormat::kBF16,
                                .query_dtype = DType::kBF16,
                                .softmax_scale = 1};
constexpr int kLeaf = 64;

UniformBatchConfig batch(int workers, int sequences, std::int64_t context, SpreadPolicy spread) {
  return {.workers = workers,
          .batch = sequences,
          .context = context,
          .spread = spread,
          .model = default_cost_model(kLeaf)};
}

CostModelConfig config(const MachineCosts& costs, int layers = 1, int workers_per_node = 1024) {
  return {.costs = costs,
          .attention = kShape,
          .projection = {},
          .layers = layers,
          .leaf_tokens = kLeaf,
          .workers_per_node = workers_per_node};
}

double phase(const StepPrediction& step, Phase phase) {
  return step.phase_us[static_cast<std::size_t>(phase)];
}

TEST(CostModel, AttentionIsItsLeavesRowsAndFlop) {
  const UniformBatch step(batch(1, 3, 100, SpreadPolicy::kSingle));  // two leaves each
  const auto attend = [&](const MachineCosts& costs) {
    return phase(predict_step(config(costs), step.routing(), 1, Exchange::kAllToAll),
                 Phase::kAttend);
  };
  EXPECT_DOUBLE_EQ(attend({.attend_us = 7}), 7);
  EXPECT_DOUBLE_EQ(attend({.attend_task_us = 2}), 3 * 2 * 2);
  EXPECT_DOUBLE_EQ(attend({.attend_byte_ns = 1000}), 300 * 48 * 2);
  EXPECT_DOUBLE_EQ(attend({.attend_gflop_us = 1e9}), 300 * 4 * 2 * (2 * 32 + 16));
  // Half of the shorter one runs under the longer.
  EXPECT_DOUBLE_EQ(attend({.attend_byte_ns = 1000, .attend_gflop_us = 1e9, .attend_overlap = 0.5}),
                   300 * 48 * 2 * 0.5 + 300 * 4 * 2 * (2 * 32 + 16));
  // One level of merges of three pairs.
  EXPECT_DOUBLE_EQ(attend({.merge_us = 5}), 5);
  EXPECT_DOUBLE_EQ(attend({.merge_byte_ns = 1000}),
                   3 * static_cast<double>(kShape.state_shape().record_bytes()));
}

TEST(CostModel, ASequenceOnOneWorkerIsNotExchanged) {
  const UniformBatch step(batch(4, 4, 1000, SpreadPolicy::kSingle));
  const MachineCosts costs{.all_gather_message_us = 1, .all_to_all_message_us = 1};
  for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
    const StepPrediction found = predict_step(config(costs), step.routing(), 4, exchange);
    EXPECT_EQ(found.step_us, 0);
  }
}

TEST(CostModel, AnExchangeIsItsMessagesAndTheBytesThatTheBusiestReceives) {
  // Four leaves on four workers: the home gets three roots, the others a query each.
  const UniformBatch step(batch(4, 1, 4 * kLeaf, SpreadPolicy::kAll));
  ASSERT_EQ(step.routing().spread.size(), 4U);
  const double state = static_cast<double>(kShape.state_shape().record_bytes());
  const double token = static_cast<double>(kShape.token_record_bytes());
  const auto predict = [&](const MachineCosts& costs, Exchange exchange, int per_node) {
    return predict_step(config(costs, 1, per_node), step.routing(), 4, exchange);
  };
  const StepPrediction scatter =
      predict({.all_to_all_message_us = 10, .all_to_all_byte_ns = 1000}, Exchange::kAllToAll, 4);
  // The home sends three messages and gets none, the others get one.
  EXPECT_DOUBLE_EQ(phase(scatter, Phase::kQueryExchange), std::max(3.0 * 10, 10 + token));
  EXPECT_DOUBLE_EQ(phase(scatter, Phase::kPartialExchange), 3 * 10 + 3 * state);
  const StepPrediction gather =
      predict({.all_gather_message_us = 10, .all_gather_byte_ns = 1000}, Exchange::kAllGather, 4);
  EXPECT_DOUBLE_EQ(phase(gather, Phase::kQueryExchange), 2 * 10 + token);
  // The home's own block stays where it is, and it has nothing to send.
  EXPECT_DOUBLE_EQ(phase(gather, Phase::kPartialExchange), 2 * 10 + 3 * state);
  // Two nodes of two: of the home's three roots two come over the network.
  const StepPrediction far =
      predict({.network_message_us = 100, .network_byte_ns = 1000}, Exchange::kAllToAll, 2);
  EXPECT_DOUBLE_EQ(phase(far, Phase::kPartialExchange), 2 * 100 + 2 * state);
}

TEST(CostModel, TheExchangeIsChosenByMessagesAndBytes) {
  const UniformBatch step(batch(8, 8, 8 * kLeaf, SpreadPolicy::kAll));
  const auto choice = [&](const MachineCosts& costs) {
    return choose_exchange(config(costs), step.routing(), 8);
  };
  EXPECT_EQ(choice({.all_gather_byte_ns = 1, .all_to_all_byte_ns = 1}), Exchange::kAllToAll)
      << "it moves fewer bytes";
  EXPECT_EQ(choice({.all_gather_message_us = 1, .all_to_all_message_us = 1}), Exchange::kAllGather)
      << "it has fewer messages";
  const UniformBatch alone(batch(1, 1, 100, SpreadPolicy::kAuto));
  EXPECT_NE(choose_exchange(config({}), alone.routing(), 1), Exchange::kAuto);
}

TEST(CostModel, LayersMultiplyRoundsAndNotStepsOrPlans) {
  const UniformBatch step(batch(1, 5, 64, SpreadPolicy::kAuto));
  const MachineCosts costs{.attend_us = 1, .plan_item_us = 100, .round_us = 10, .step_us = 1000};
  const StepPrediction found =
      predict_step(config(costs, 3), step.routing(), 1, Exchange::kAllToAll);
  EXPECT_DOUBLE_EQ(found.step_us, 3 * 1 + 5 * 100 + 3 * 10 + 1000);
  EXPECT_DOUBLE_EQ(found.other_us, 3 * 10 + 1000);
  EXPECT_THROW((void)predict_step(config(costs, 0), step.routing(), 1, Exchange::kAllToAll), Error);
}

TEST(CostModel, AWorkerThatWaitedLongComesLate) {
  // One of two workers has a leaf and takes 1000 us for it, the other waits.
  const UniformBatch step(batch(2, 1, 64, SpreadPolicy::kAuto));
  const auto late = [&](double free, double share, double most) {
    return predict_step(config({.attend_us = 1000,
                                .wait_free_us = free,
                                .wait_late_share = share,
                                .wait_late_most_us = most},
                               2),
                        step.routing(), 2, Exchange::kAllToAll)
        .other_us;
  };
  EXPECT_DOUBLE_EQ(late(600, 0.5, 1e9), 2 * 0.5 * 400);
  EXPECT_DOUBLE_EQ(late(600, 0.5, 100), 2 * 100);
  EXPECT_DOUBLE_EQ(late(2000, 0.5, 1e9), 0);
}

TEST(CostModel, ProjectionsReadTheirWeightsOnceAndCostEachToken) {
  const UniformBatch step(batch(2, 6, 64, SpreadPolicy::kSingle));
  CostModelConfig with = config({.weight_byte_ns = 1000, .weight_gflop_us = 10});
  with.projection = {.weight_bytes = 50, .token_gflop = 2};
  const StepPrediction found = predict_step(with, step.routing(), 2, Exchange::kAllToAll);
  EXPECT_DOUBLE_EQ(phase(found, Phase::kProject), 50 + 3 * 2 * 10);  // three homes each
}

TEST(UniformBatch, HoldsTheRowsOfItsContexts) {
  const UniformBatch step(batch(2, 4, 1000, SpreadPolicy::kSingle));
  EXPECT_EQ(step.busiest_pages(), 2 * ceil_div(1000, kPageTokens));
  std::int64_t rows = 0;
  for (const std::int64_t worker : step.routing().worker_rows) rows += worker;
  EXPECT_EQ(rows, 4000);
  EXPECT_THROW(UniformBatch(batch(2, 0, 1000, SpreadPolicy::kAuto)), Error);
  EXPECT_THROW(UniformBatch(batch(2, 1, 1, SpreadPolicy::kAuto)), Error);
  EXPECT_THROW(UniformBatch(batch(2, 1 << 16, std::int64_t{1} << 24, SpreadPolicy::kAuto)), Error);
}

}  // namespace
}  // namespace tributary
