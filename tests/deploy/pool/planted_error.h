// A wrong attention, for the canary to notice.
#pragma once

#include <functional>
#include <vector>

#include "tests/deploy/pool/pool_harness.h"

namespace tributary {

/// Changes one state.
using PlantedError = std::function<void(float* state, const StateShape& shape)>;

inline void scale_outputs(float* state, const StateShape& shape) {
  for (int i = 0; i < shape.heads * shape.width; ++i) state[i] *= 1.1F;
}

/// The report of a round of one item of three leaves whose canary looks at its first head, with
/// the states that contain the first leaf changed.
[[nodiscard]] inline RoundReport round_with_error(PoolSetup setup, const PlantedError& change) {
  const StateShape shape = setup.shape.state_shape();
  setup.after_attend = [&change, shape](int, const AttendArgs& args) {
    for (const LeafTask& task : args.tasks) {
      if (task.leaf_begin != 0) continue;
      change(args.states + static_cast<std::size_t>(task.state) * shape.record_floats(), shape);
    }
  };
  RoundReport report;
  (void)run_pool(setup, [&](PoolLeader& leader) {
    const auto id = leader.admit({1, 130, 4}).value();
    leader.sequencer.steps().open(std::vector<StepItem>{{id, 1}});
    report = leader.round({{id, 0}}, {0, 0});
  });
  return report;
}

}  // namespace tributary
