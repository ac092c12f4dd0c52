// Executes one round of a pool on one rank: queries out, leaves attended, roots out, tree finished.
#pragma once

#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/interface/communicator.h"
#include "core/interface/recorded_calls.h"
#include "core/model/attention_shape.h"
#include "core/plan/plan.h"
#include "core/round/phases.h"
#include "core/round/pool_client.h"
#include "core/round/round_program.h"

namespace tributary {

/// Runs the stages of a RoundProgram, which it owns.
class RoundExecutor {
 public:
  /// `communicator` takes pointers of the backend's memory. Where it is on_stream(), that is the
  /// stream of `backend`: a round is enqueued as a whole then, and waited for once, at its end.
  RoundExecutor(const AttentionShape& shape, Backend& backend, Communicator& communicator,
                Cache& cache);

  /// Runs the plan with item i at layer item_layer[i]. A failure of this rank's own work (the
  /// client or the backend throws) goes to `failure`, and the rank still enters every collective of
  /// the round; with `failure` set on entry it does nothing but that. The result is not ok only
  /// when the communicator failed: nothing more can be exchanged then. On return nothing of the
  /// round is under way, whatever came of it; only after a failure of the communicator may a device
  /// that answers no more leave some.
  Status run(const RankPlan& plan, RoundProgram::Layers item_layer, PoolClient& client,
             Deadline deadline, Status& failure, PhaseTimes& times);

  /// Stages, and what the last run left in their memory.
  [[nodiscard]] RoundProgram& program() noexcept { return program_; }

 private:
  Status execute(const RankPlan& plan, RoundProgram::Layers item_layer, PoolClient& client,
                 Deadline deadline, Status& failure, PhaseTimes& times);
  void synchronize_unless_ordered(Deadline deadline);
  void end_phase(Phase phase, Status& failure);
  void take_device_times(PhaseTimes& times);

  RoundProgram program_;
  Backend& backend_;
  Communicator& communicator_;
  RecordedCalls recorded_;
  std::vector<Phase> ended_;  // that of index i lies between the backend's marks i and i + 1
};

}  // namespace tributary
