// A sampled check of what a pool serves: one head of one token is computed again in float64, from
// the stored rows and the query as it was attended, and compared with the state that the home has.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/interface/communicator.h"
#include "core/model/attention_shape.h"
#include "core/plan/plan.h"
#include "core/sequencer/order.h"

namespace tributary {

/// Known on the item's home alone.
struct CanaryVerdict {
  bool checked = false;
  double error = 0;  // see RoundReport::canary_error
};

/// A canary reads these parts of the round that has just run.
struct CanaryInput {
  const AttentionShape& shape;
  const Routing& routing;
  const RankPlan& plan;
  std::span<const std::int32_t> item_layer;
  const AttendArgs attended;  // see RoundExecutor
  const float* states = nullptr;
  int leaf_tokens = 0;
  std::int64_t most_rows = 0;  // a rank that holds more of the item does not recompute them
};

/// Called on every rank after a round: each recomputes its own rows, and the home compares. As
/// RoundExecutor::run: a failure of this rank's own goes to `failure`, and the rank takes part in
/// the exchange regardless; the result is not ok only when the communicator failed.
Status run_canary(const CanaryOrder& order, const CanaryInput& input, Backend& backend,
                  Communicator& communicator, const Cache& cache, Deadline deadline,
                  Status& failure, CanaryVerdict& verdict);

}  // namespace tributary
