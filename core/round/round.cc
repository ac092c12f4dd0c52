#include "core/round/round.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace tributary {
namespace {

/// The time for a device to end the work enqueued behind an abandoned collective: a round's kernels
/// take milliseconds, and the peers, who were told before, do not wait for this.
constexpr auto kDrainTimeout = std::chrono::seconds(10);

/// Kinds of rounds that follow each other in any order: with and without new rows, some numbers of
/// new tokens, some heights of trees.
constexpr std::size_t kRecordings = 32;

/// Runs this rank's own work unless it failed before; keeps the first failure.
template <typename Work>
void attempt(Status& failure, const Work& work) {
  if (failure.ok()) failure = status_of(work);
}

}  // namespace

RoundExecutor::RoundExecutor(const AttentionShape& shape, Backend& backend,
                             Communicator& communicator, Cache& cache)
    : program_(shape, backend, communicator, cache),
      backend_(backend),
      communicator_(communicator),
      recorded_(backend, kRecordings) {}

Status RoundExecutor::run(const RankPlan& plan, RoundProgram::Layers item_layer, PoolClient& client,
                          Deadline deadline, Status& failure, PhaseTimes& times) {
  PhaseTimes own{};
  Status status;
  const Status thrown =
      status_of([&] { status = execute(plan, item_layer, client, deadline, failure, own); });
  if (!thrown.ok()) {
    communicator_.poison(thrown);
    status = thrown;
  }
  if (!status.ok()) {
    // The communicator has given up its collectives, so the stream reaches the work behind them,
    // which still writes into the arenas. The failure to report is the communicator's.
    (void)status_of([&] { backend_.synchronize(Deadline::after(kDrainTimeout)); });
  } else if (failure.ok()) {
    failure = status_of([&] { take_device_times(own); });
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) times[phase] += own[phase];
  return status;
}

/// Throws if the rank cannot enter the collectives; that ends the communicator.
Status RoundExecutor::execute(const RankPlan& plan, RoundProgram::Layers item_layer,
                              PoolClient& client, Deadline deadline, Status& failure,
                              PhaseTimes& times) {
  program_.reserve(plan);
  ended_.clear();
  if (communicator_.on_stream()) attempt(failure, [&] { backend_.mark(0); });
  const auto stages = RoundProgram::stages();
  for (const RoundProgram::Stage& stage : stages) {
    if (!program_.planned(stage, plan)) continue;
    const PhaseTimer timer(times, stage.phase);
    attempt(failure, [&] {
      program_.client_part(stage, plan, item_layer, client);
      recorded_.run(program_.calls(stage, plan, item_layer), stage.kind ? stage.kind(plan) : 0);
      synchronize_unless_ordered(deadline);
    });
    Status status = program_.exchange(stage, plan, deadline);
    if (!status.ok()) return status;
    end_phase(stage.phase, failure);
  }
  const PhaseTimer timer(times, stages.back().phase);
  Status status = communicator_.complete(deadline);
  if (!status.ok()) return status;
  // Also after a failure: the work before it uses buffers that the next round may replace.
  const Status waited = status_of([&] { backend_.synchronize(deadline); });
  if (failure.ok()) failure = waited;
  return {};
}

/// Waits until the communicator's input is there, unless the stream orders the two.
void RoundExecutor::synchronize_unless_ordered(Deadline deadline) {
  if (!communicator_.on_stream()) backend_.synchronize(deadline);
}

/// On a stream the host does not wait at the end of a phase: the device has to tell when it was.
void RoundExecutor::end_phase(Phase phase, Status& failure) {
  if (!communicator_.on_stream()) return;
  attempt(failure, [&] {
    ended_.push_back(phase);
    backend_.mark(static_cast<int>(ended_.size()));
  });
}

/// The device's time of a phase replaces the host's if the device measures it.
void RoundExecutor::take_device_times(PhaseTimes& times) {
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    const int mark = static_cast<int>(i);
    const std::optional<double> taken = backend_.microseconds_between(mark, mark + 1);
    if (!taken) continue;
    double& time = times[static_cast<std::size_t>(ended_[i])];
    const bool goes_on = i > 0 && ended_[i - 1] == ended_[i];
    time = (goes_on ? time : 0) + *taken;
  }
}

}  // namespace tributary
