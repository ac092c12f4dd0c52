// A round whose calls were recorded, for an engine that captures its own step.
#pragma once

#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/plan/plan.h"
#include "core/round/round_program.h"

namespace tributary {

/// One object per layer; the engine's own layers may lie in between. The engine does the client's
/// part itself: it writes the program's tokens() and reads its states(). The engine is also
/// responsible for waits, deadlines and agreement between ranks. The program outlives the recorded
/// round, which outlives every graph of the engine that contains it.
///
///   right: make one for every layer; begin the capture; enqueue each where it belongs; end the
///          capture; then for every step: refill each, and launch the engine's graph;
///   wrong: run or record a round of a larger plan in between, which moves the program's memory:
///          refill() returns false, and the engine has to record and capture again.
class RecordedRound {
 public:
  /// Throws kUnsupported for a backend without recordings, kFailedPrecondition where the plan's
  /// exchanges need a communicator that is on_stream().
  RecordedRound(RoundProgram& program, const RankPlan& plan, RoundProgram::Layers item_layer);

  /// Sets the next step's plan. Returns false if other data travels or the plan does not fit. The
  /// round cannot be used then: all ranks have to record and capture again.
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
