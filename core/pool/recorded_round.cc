// Rounds for engines that capture a step of their own (RoundExecutor).
#include <algorithm>
#include <functional>
#include <tuple>

#include "core/base/error.h"
#include "core/pool/round.h"

namespace tributary {
namespace {

/// What a captured exchange is of: it cannot change from one launch to the next. Nothing where
/// nothing travels.
auto exchange_of(const RankPlan& plan) {
  const bool travels = plan.tokens_travel || plan.states_travel;
  return std::tuple(plan.tokens_travel, plan.states_travel, plan.exchange,
                    travels ? plan.local_tokens : 0, travels ? plan.local_states : 0,
                    plan.token_send_counts, plan.token_recv_counts, plan.state_send_counts,
                    plan.state_recv_counts);
}

bool merges_anything(const MergeSchedule& schedule) {
  return std::ranges::any_of(schedule.levels(), [](const auto& ops) { return !ops.empty(); });
}

}  // namespace

CallsKey RoundExecutor::arenas() const {
  return {key_of(tokens_.data()), key_of(outgoing_tokens_.data()), key_of(states_.data())};
}

bool RoundExecutor::fits(const RankPlan& plan) const {
  const std::size_t token = shape_.token_record_bytes();
  const auto bytes = [](std::int64_t records, std::size_t record_bytes) {
    return static_cast<std::size_t>(records) * record_bytes;
  };
  return bytes(plan.total_tokens(), token) <= tokens_.bytes() &&
         plan.token_send_index.size() * token <= outgoing_tokens_.bytes() &&
         bytes(plan.total_states(), shape_.state_shape().record_bytes()) <= states_.bytes();
}

RecordedRound RoundExecutor::record_round(const RankPlan& plan,
                                          std::span<const std::int32_t> item_layer) {
  if ((plan.tokens_travel || plan.states_travel) && !communicator_.on_stream()) {
    fail(ErrorCode::kFailedPrecondition,
         "record_round: communicator {} waits for the host, a captured round cannot",
         communicator_.name());
  }
  reserve(plan);
  const auto record = [&](bool anything, const std::function<void()>& calls) {
    std::unique_ptr<Recording> recording;
    if (!anything) return recording;
    recording = backend_.record(calls);
    if (recording == nullptr) {
      fail(ErrorCode::kUnsupported, "record_round: backend {} makes no recordings",
           backend_.name());
    }
    return recording;
  };
  RecordedRound round{.plan = plan, .arenas = arenas(), .send = {}, .attend = {}, .combine = {}};
  round.send = record(!plan.token_send_index.empty(), [&] { gather_tokens(plan); });
  round.attend =
      record(!plan.appends.empty() || !plan.tasks.empty(), [&] { make_attend(plan, item_layer); });
  round.combine = record(merges_anything(plan.home_merges), [&] { merge(plan.home_merges); });
  return round;
}

bool RoundExecutor::refill_round(RecordedRound& round, const RankPlan& plan,
                                 std::span<const std::int32_t> item_layer) {
  if (round.arenas != arenas() || exchange_of(round.plan) != exchange_of(plan) || !fits(plan)) {
    return false;
  }
  const auto refill = [&](const std::unique_ptr<Recording>& recording, bool anything,
                          const std::function<void()>& calls) {
    if (recording == nullptr || !anything) return (recording != nullptr) == anything;
    return backend_.refill(*recording, calls);
  };
  return refill(round.send, !plan.token_send_index.empty(), [&] { gather_tokens(plan); }) &&
         refill(round.attend, !plan.appends.empty() || !plan.tasks.empty(),
                [&] { make_attend(plan, item_layer); }) &&
         refill(round.combine, merges_anything(plan.home_merges), [&] { merge(plan.home_merges); });
}

Status RoundExecutor::enqueue_round(const RecordedRound& round, Deadline deadline) {
  if (round.send) backend_.replay(*round.send);
  if (round.plan.tokens_travel) {
    Status status = exchange_tokens(round.plan, deadline);
    if (!status.ok()) return status;
  }
  if (round.attend) backend_.replay(*round.attend);
  if (round.plan.states_travel) {
    Status status = exchange_states(round.plan, deadline);
    if (!status.ok()) return status;
  }
  if (round.combine) backend_.replay(*round.combine);
  return {};
}

}  // namespace tributary
