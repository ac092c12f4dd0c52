// What halves that overlap would gain, worked out by hand.
#include "core/cost/overlap.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/base/error.h"
#include "core/cost/built_in_costs.h"

namespace tributary {
namespace {

constexpr int kHalfLeaf = 64;

CostModelConfig model_of(const MachineCosts& costs) {
  CostModelConfig model = default_cost_model(kHalfLeaf);
  model.costs = costs;
  model.layers = 2;
  return model;
}

/// Two leaves on two workers, at home with the first.
PlacedSequence cut() {
  return {.runs = {{0, 0, 1}, {1, 1, 2}}, .home = 0, .tokens = 2 * kHalfLeaf};
}
PlacedSequence whole(std::int32_t worker) {
  return {.runs = {{worker, 0, 2}}, .home = worker, .tokens = 2 * kHalfLeaf};
}

/// 1 us a row attended, `record_us` for each record that is received.
MachineCosts costs_of(const CostModelConfig& model, double record_us) {
  const AttentionShape& shape = model.attention;
  return {.attend_byte_ns = 1e3 / static_cast<double>(shape.row_bytes()),
          .all_gather_byte_ns = 1e9,
          .all_to_all_byte_ns =
              1e3 * record_us / static_cast<double>(shape.state_shape().record_bytes())};
}

TEST(Overlap, HidesTheExchangeOfOneHalfUnderTheOther) {
  const CostModelConfig model = model_of(costs_of(model_of({}), 10));
  const double query_us = 10 * static_cast<double>(model.attention.token_record_bytes()) /
                          static_cast<double>(model.attention.state_shape().record_bytes());
  // Two that are alike: of each a query and a state.
  const std::vector<PlacedSequence> two{cut(), cut()};
  const OverlapGain gain = predict_overlap(model, two, 2);
  EXPECT_NEAR(gain.step_us, 2 * (2 * query_us + 2 * kHalfLeaf + 20), 1e-9);
  EXPECT_NEAR(gain.halves_us, 2 * (query_us + 2 * kHalfLeaf + 10), 1e-9);
  EXPECT_NEAR(gain.free_us, 2 * 2 * kHalfLeaf, 1e-9);
}

TEST(Overlap, WholeSequencesHideAnExchangeOfOthers) {
  const CostModelConfig model = model_of(costs_of(model_of({}), 10));
  const std::vector<PlacedSequence> mixed{cut(), whole(0), whole(1)};
  const OverlapGain gain = predict_overlap(model, mixed, 2);
  const double query_us = gain.step_us / 2 - (kHalfLeaf + 2 * kHalfLeaf + 10);
  // The cut one first, its state under the others' attention, or its query there.
  EXPECT_NEAR(gain.halves_us, 2 * (query_us + kHalfLeaf + 2 * kHalfLeaf), 1e-9);
}

TEST(Overlap, PaysMessagesCallsAndWeightsTwice) {
  MachineCosts costs{.attend_us = 7, .all_to_all_message_us = 3};
  const std::vector<PlacedSequence> two{cut(), cut()};
  const OverlapGain home = predict_overlap(model_of(costs), two, 2);
  // An all-gather's messages cost nothing here: halves have two calls instead of one.
  EXPECT_DOUBLE_EQ(home.step_us, 2 * 7);
  EXPECT_DOUBLE_EQ(home.halves_us, 2 * 14);
  EXPECT_DOUBLE_EQ(home.free_us, 2 * 7);
  costs.all_gather_message_us = 3;
  const OverlapGain late = predict_overlap(model_of(costs), two, 2);
  EXPECT_DOUBLE_EQ(late.step_us, 2 * (3 + 7 + 3));
  EXPECT_DOUBLE_EQ(late.halves_us, 2 * (3 + 7 + 7 + 3));

  costs = {.weight_byte_ns = 1};
  CostModelConfig leaves = model_of(costs);
  leaves.attention.project_at = ProjectAt::kLeaves;
  leaves.attention.qk_nope_head_dim = leaves.attention.v_head_dim = 128;
  const OverlapGain twice = predict_overlap(leaves, two, 2);
  const double weights_us = 128.0 * 512 * (128 + 128) * 2 * 1e-3;
  EXPECT_NEAR(twice.halves_us - twice.step_us, 2 * weights_us, 1e-9 * weights_us);
}

TEST(Overlap, NothingIsGainedWhereNothingIsExchanged) {
  const CostModelConfig model = model_of(costs_of(model_of({}), 10));
  const OverlapGain gain =
      predict_overlap(model, std::vector<PlacedSequence>{whole(0), whole(1)}, 2);
  EXPECT_DOUBLE_EQ(gain.free_us, gain.step_us);
  EXPECT_GE(gain.halves_us, gain.step_us);
  EXPECT_THROW((void)predict_overlap(model, {}, 0), Error);
}

}  // namespace
}  // namespace tributary
