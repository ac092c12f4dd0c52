#include "deploy/predict/plan/whole_batch.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/cost/built_in_costs.h"

namespace tributary {
namespace {

CostModelConfig h200_model() {
  CostModelConfig model = default_cost_model();
  model.costs = find_built_in_costs("h200").costs;
  model.layers = 61;
  model.workers_per_node = 8;
  return model;
}

TEST(WholeBatch, AsManySequencesAsWorkersAreBestWhole) {
  const WholeBatch whole = plan_whole_batch(h200_model(), 8, 16, 131'072);
  EXPECT_EQ(whole.known_spread, 1);
  // The first ones are cut before it is known how many follow; moves join them.
  EXPECT_GT(whole.admitted_us, 1.02 * whole.known_us);
  EXPECT_GT(whole.moves, 0);
  EXPECT_GT(whole.moved_bytes, 0);
  EXPECT_LE(whole.moved_us, 1.02 * whole.known_us);
}

TEST(WholeBatch, ALongSequenceAloneIsBestSpread) {
  const WholeBatch whole = plan_whole_batch(h200_model(), 8, 1, 1 << 20);
  EXPECT_EQ(whole.known_spread, 8);
  EXPECT_LE(whole.moved_us, whole.admitted_us);
  EXPECT_LE(whole.moved_us, 1.05 * whole.known_us);
}

TEST(WholeBatch, ALongSequenceOfWhichFewRowsAreReadStaysWhole) {
  CostModelConfig model = h200_model();
  model.attention.topk = 2048;
  model.leaf_tokens = 32'768;
  for (const int batch : {1, 8, 64}) {
    const WholeBatch whole = plan_whole_batch(model, 8, batch, 1 << 20);
    EXPECT_EQ(whole.known_spread, 1) << batch;
    EXPECT_EQ(whole.moves, 0) << batch;
    EXPECT_LE(whole.admitted_us, 1.02 * whole.known_us) << batch;
  }
  const double long_us = plan_whole_batch(model, 8, 8, 1 << 18).known_us;
  EXPECT_LE(long_us, 2 * plan_whole_batch(model, 8, 8, 4096).known_us);
}

TEST(WholeBatch, RefusesInvalidBatches) {
  EXPECT_THROW((void)plan_whole_batch(h200_model(), 8, 0, 100), Error);
  EXPECT_THROW((void)plan_whole_batch(h200_model(), 8, 1, 0), Error);
  EXPECT_THROW((void)plan_whole_batch(h200_model(), 8, 1 << 20, 1 << 20), Error);
}

}  // namespace
}  // namespace tributary
