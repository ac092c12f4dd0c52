// Predicts the time of a step from its plan: each worker's work times its cost.
#pragma once

#include <vector>

#include "core/cost/round_work.h"
#include "core/plan/plan.h"
#include "core/round/phases.h"

namespace tributary {

/// Microseconds.
struct StepPrediction {
  PhaseTimes phase_us{};  // of all layers; per phase the slowest worker
  double other_us = 0;    // agreement on the end of rounds, the order of the step, late workers
  /// The whole step; workers that meet in an exchange wait for the slowest.
  double step_us = 0;
  std::vector<double> worker_attend_us;  // of all layers
};

/// `exchange` is kAllGather or kAllToAll. Throws kInvalidArgument for fewer than one layer or
/// worker per node.
[[nodiscard]] StepPrediction predict_step(const CostModelConfig& config, const Routing& routing,
                                          int workers, Exchange exchange);

}  // namespace tributary
