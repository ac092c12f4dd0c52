// Executes one round of a pool on one rank: sends queries, attends to leaves, sends roots, finishes
// the tree.
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
  /// `communicator` takes pointers of the backend's memory. If it is on_stream(), it uses the
  /// stream of `backend`: a round is then enqueued as a whole and waited for once, at its end.
  RoundExecutor(const AttentionShape& shape, Backend& backend, Communicator& communicator,
                Cache& cache);

  /// Runs the plan with item i at layer item_layer[i]. A failure of this rank's own work (the
  /// client or the backend throws) goes to `failure`, and the rank still enters every collective of
  /// the round; with `failure` set on entry it does only that. The result is not ok only when the
  /// communicator failed: nothing more can be exchanged then. On return no work of the round is
  /// pending, whether it failed or not. The one exception: after a failure of the communicator, a
  /// device that no longer answers may leave some.
  Status run(const RankPlan& plan, RoundProgram::Layers item_layer, PoolClient& client,
             Deadline deadline, Status& failure, PhaseTimes& times);

  /// The stages, and the results of the last run in their memory.
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
  std::vector<Phase> ended_;  // the phase of index i lies between the backend's marks i and i + 1
};

}  // namespace tributary
