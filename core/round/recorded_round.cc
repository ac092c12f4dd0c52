#include "core/round/recorded_round.h"

#include <tuple>

namespace tributary {
namespace {

/// The properties of a captured exchange that cannot change from one launch to the next. Empty
/// where nothing travels.
auto exchange_of(const RankPlan& plan) {
  const bool travels = plan.tokens_travel || plan.states_travel;
  return std::tuple(plan.tokens_travel, plan.states_travel, plan.exchange,
                    travels ? plan.local_tokens : 0, travels ? plan.local_states : 0,
                    plan.token_send_counts, plan.token_recv_counts, plan.state_send_counts,
                    plan.state_recv_counts);
}

}  // namespace

RecordedRound::RecordedRound(RoundProgram& program, const RankPlan& plan,
                             RoundProgram::Layers item_layer)
    : program_(&program), plan_(plan) {
  const Communicator& communicator = program.communicator();
  if ((plan.tokens_travel || plan.states_travel) && !communicator.on_stream()) {
    fail(ErrorCode::kFailedPrecondition,
         "recorded round: communicator {} waits for the host, a captured round cannot",
         communicator.name());
  }
  program.reserve(plan);
  arenas_ = program.arenas();
  Backend& backend = program.backend();
  for (const RoundProgram::Stage& stage : RoundProgram::stages()) {
    std::unique_ptr<Recording>& recording = recordings_.emplace_back();
    const auto calls = program.calls(stage, plan, item_layer);
    if (calls.empty()) continue;
    recording = backend.record(calls);
    if (recording == nullptr) {
      fail(ErrorCode::kUnsupported, "recorded round: backend {} makes no recordings",
           backend.name());
    }
  }
}

bool RecordedRound::refill(const RankPlan& plan, RoundProgram::Layers item_layer) {
  if (arenas_ != program_->arenas() || exchange_of(plan_) != exchange_of(plan) ||
      !program_->fits(plan)) {
    return false;
  }
  auto recording = recordings_.begin();
  for (const RoundProgram::Stage& stage : RoundProgram::stages()) {
    const std::unique_ptr<Recording>& recorded = *recording++;
    const auto calls = program_->calls(stage, plan, item_layer);
    if (calls.empty() != (recorded == nullptr)) return false;
    if (recorded != nullptr && !program_->backend().refill(*recorded, calls)) return false;
  }
  return true;
}

Status RecordedRound::enqueue(Deadline deadline) const {
  auto recording = recordings_.begin();
  for (const RoundProgram::Stage& stage : RoundProgram::stages()) {
    const std::unique_ptr<Recording>& recorded = *recording++;
    if (recorded != nullptr) program_->backend().replay(*recorded);
    Status status = program_->exchange(stage, plan_, deadline);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace tributary
