// A round whose calls were recorded, for an engine that captures a step of its own.
#pragma once

#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/plan/plan.h"
#include "core/round/round_program.h"

namespace tributary {

/// One for each layer, with layers of the engine's own in between. The engine does the client's
/// part itself: it writes the program's tokens() and reads its states(). Waits, deadlines and
/// agreement between ranks are the engine's too. The program outlives the recorded round, which
/// outlives every graph of the engine that it is part of.
///
///   right: make one for every layer; begin the capture; enqueue each where it belongs; end the
///          capture; then for every step: refill each, and launch the engine's graph;
///   wrong: run or record a round of a larger plan in between, which moves the program's memory:
///          refill() says no, and the engine has to record and capture anew.
class RecordedRound {
 public:
  /// Throws kUnsupported for a backend without recordings, kFailedPrecondition where the plan's
  /// exchanges need a communicator that is on_stream().
  RecordedRound(RoundProgram& program, const RankPlan& plan, RoundProgram::Layers item_layer);

  /// The next step's plan. False where what travels differs, or the plan does not fit: the round is
  /// of no more use then, all ranks have to record and capture anew.
  [[nodiscard]] bool refill(const RankPlan& plan, RoundProgram::Layers item_layer);
  /// Enqueues the round. The communicator's calls are captured like the rest.
  Status enqueue(Deadline deadline) const;

 private:
  RoundProgram* program_;
  RankPlan plan_;  // as recorded
  RoundProgram::Arenas arenas_{};
  std::vector<std::unique_ptr<Recording>> recordings_;  // of each stage; null: no calls
};

}  // namespace tributary
