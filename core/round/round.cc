#include "core/round/round.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>

#include "core/base/ceil_div.h"

namespace tributary {
namespace {

/// For a device to end what was enqueued behind a collective that was given up: a round's kernels
/// take milliseconds, and the peers, who were told before, do not wait for this.
constexpr auto kDrainTimeout = std::chrono::seconds(10);

/// Kinds of rounds that follow each other in any order: with and without new rows, some numbers of
/// new tokens, some heights of trees; of whole rounds and of halves.
constexpr std::size_t kRecordings = 64;
/// Where the leaves are projected, a layer's weights are part of its calls: the kinds of each.
constexpr std::size_t kRecordingsOfALayer = 4;

/// Runs this rank's own work unless it failed before; keeps the first failure.
template <typename Work>
void attempt(Status& failure, const Work& work) {
  if (failure.ok()) failure = status_of(work);
}

/// Where a part begins whose predecessor has so many records. Rounded up, by an eighth at most: the
/// calls of the second half name its addresses, and recordings of them are good for as long as
/// these do not change.
std::int64_t behind(std::int64_t records) {
  const auto eighth =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(records)) / 8);
  return ceil_div(records, std::max<std::int64_t>(eighth, 1)) * std::max<std::int64_t>(eighth, 1);
}

}  // namespace

/// A stage of one part: its calls and the begin of its exchange, or the end of that, or both.
struct RoundExecutor::Turn {
  std::size_t part = 0;
  RoundProgram::StageIndex stage;
  bool begins = true;
  bool ends = true;

  static std::span<const Turn> of(std::size_t parts) noexcept;
};

std::span<const RoundExecutor::Turn> RoundExecutor::Turn::of(std::size_t parts) noexcept {
  using Program = RoundProgram;
  static constexpr std::array kWhole{
      Turn{.stage = Program::kQueries},
      Turn{.stage = Program::kLeaves},
      Turn{.stage = Program::kStates},
      Turn{.stage = Program::kTrees},
  };
  static constexpr std::array kHalves{
      Turn{.part = 0, .stage = Program::kQueries, .ends = false},
      Turn{.part = 1, .stage = Program::kQueries, .ends = false},
      Turn{.part = 0, .stage = Program::kQueries, .begins = false},
      Turn{.part = 0, .stage = Program::kLeaves},
      Turn{.part = 0, .stage = Program::kStates, .ends = false},
      Turn{.part = 1, .stage = Program::kQueries, .begins = false},
      Turn{.part = 1, .stage = Program::kLeaves},
      Turn{.part = 1, .stage = Program::kStates, .ends = false},
      Turn{.part = 0, .stage = Program::kStates, .begins = false},
      Turn{.part = 0, .stage = Program::kTrees},
      Turn{.part = 1, .stage = Program::kStates, .begins = false},
      Turn{.part = 1, .stage = Program::kTrees},
  };
  constexpr std::size_t kClient = 1;
  static_assert(kHalves.size() + kClient < Backend::kMarks,
                "a mark before the client, and one after it and after each turn");
  return parts == 1 ? std::span<const Turn>(kWhole) : std::span<const Turn>(kHalves);
}

RoundExecutor::RoundExecutor(const AttentionShape& shape, Backend& backend,
                             Communicator& communicator, Cache& cache,
                             const std::vector<LeafWeights>& weights)
    : shape_(shape),
      backend_(backend),
      communicator_(communicator),
      records_(backend),
      programs_{RoundProgram(shape, backend, communicator, cache, records_, weights),
                RoundProgram(shape, backend, communicator, cache, records_, weights)},
      recorded_(backend, kRecordings + kRecordingsOfALayer * weights.size()) {}

Status RoundExecutor::run(const RankPlan& plan, RoundProgram::Layers item_layer, PoolClient& client,
                          Deadline deadline, Status& failure, PhaseTimes& times) {
  return run(std::array{RoundPart{plan, item_layer}}, client, deadline, failure, times);
}

Status RoundExecutor::run(std::span<const RoundPart> parts, PoolClient& client, Deadline deadline,
                          Status& failure, PhaseTimes& times) {
  PhaseTimes own{};
  Status status;
  const Status thrown = status_of([&] { status = execute(parts, client, deadline, failure, own); });
  if (!thrown.ok()) {
    communicator_.poison(thrown);
    status = thrown;
  }
  if (!status.ok()) {
    // The communicator has given up its collectives, so that a stream comes to what lies behind
    // them, which still writes into the arenas. The failure to tell is the communicator's.
    (void)status_of([&] { backend_.synchronize(Deadline::after(kDrainTimeout)); });
  } else if (failure.ok()) {
    failure = status_of([&] { take_device_times(own); });
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) times[phase] += own[phase];
  return status;
}

/// Throws where the rank cannot enter the collectives: that ends the communicator.
Status RoundExecutor::execute(std::span<const RoundPart> parts, PoolClient& client,
                              Deadline deadline, Status& failure, PhaseTimes& times) {
  prepare(parts);
  ended_.clear();
  if (communicator_.on_stream()) attempt(failure, [&] { backend_.mark(0); });
  {
    const PhaseTimer timer(times, Phase::kProject);
    attempt(failure, [&] {
      if (!homed_.empty()) {
        client.write_tokens(homed_, item_layer_, records_.tokens.data(),
                            shape_.token_record_bytes());
      }
      synchronize_unless_ordered(deadline);
    });
    end_phase(Phase::kProject, failure);
  }
  for (const Turn& turn : Turn::of(parts.size())) {
    Status status = take_turn(turn, parts[turn.part], deadline, failure, times);
    if (!status.ok()) return status;
  }
  const PhaseTimer timer(times, Phase::kCombine);
  Status status = communicator_.complete(deadline);
  if (!status.ok()) return status;
  // Also after a failure: the work before it uses buffers that the next round may replace.
  const Status waited = status_of([&] { backend_.synchronize(deadline); });
  if (failure.ok()) failure = waited;
  return {};
}

/// Makes room for the parts, one behind the other, and one list of the items that are homed here.
void RoundExecutor::prepare(std::span<const RoundPart> parts) {
  if (parts.empty() || parts.size() > kMostParts) {
    fail(ErrorCode::kInvalidArgument, "a round of {} parts, expected 1 .. {}", parts.size(),
         kMostParts);
  }
  homed_.clear();
  item_layer_.clear();
  std::array<FirstRecords, kMostParts> first{};
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const RankPlan& plan = parts[p].plan;
    for (HomedItem item : plan.homed) {
      item.item += static_cast<std::int32_t>(item_layer_.size());
      item.token_record += first[p].token;
      item.state += first[p].state;
      homed_.push_back(item);
    }
    item_layer_.insert(item_layer_.end(), parts[p].item_layer.begin(), parts[p].item_layer.end());
    if (p + 1 < parts.size()) {
      first[p + 1] = {behind(first[p].token + plan.total_tokens()),
                      behind(first[p].state + plan.total_states())};
    }
  }
  // From the last one on: it needs most, and what grows loses what it had.
  for (std::size_t p = parts.size(); p-- > 0;) programs_[p].reserve(parts[p].plan, first[p]);
}

Status RoundExecutor::take_turn(const Turn& turn, const RoundPart& part, Deadline deadline,
                                Status& failure, PhaseTimes& times) {
  RoundProgram& program = programs_[turn.part];
  const RoundProgram::Stage& stage = RoundProgram::stages()[turn.stage];
  if (!program.planned(stage, part.plan)) return {};
  const PhaseTimer timer(times, stage.phase);
  Status status;
  if (turn.begins) {
    attempt(failure, [&] {
      recorded_.run(program.calls(stage, part.plan, part.item_layer),
                    stage.kind ? stage.kind(part.plan) : 0);
      synchronize_unless_ordered(deadline);
    });
    status = turn.ends ? program.exchange(stage, part.plan, deadline)
                       : program.begin_exchange(stage, part.plan, deadline);
  } else {
    status = program.end_exchange(stage, part.plan, deadline);
  }
  if (status.ok()) end_phase(stage.phase, failure);
  return status;
}

void RoundExecutor::trim(Deadline::Clock::time_point now) {
  records_.tokens.trim(now);
  records_.states.trim(now);
  for (RoundProgram& program : programs_) program.trim(now);
}

std::uint64_t RoundExecutor::exchanged_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const RoundProgram& program : programs_) bytes += program.exchanged_bytes();
  return bytes;
}

/// What a communicator reads must be there when it is called, unless the stream sees to that.
void RoundExecutor::synchronize_unless_ordered(Deadline deadline) {
  if (!communicator_.on_stream()) backend_.synchronize(deadline);
}

/// The host does not wait at the end of a phase on a stream: there the device has to tell.
void RoundExecutor::end_phase(Phase phase, Status& failure) {
  if (!communicator_.on_stream()) return;
  attempt(failure, [&] {
    ended_.push_back(phase);
    backend_.mark(static_cast<int>(ended_.size()));
  });
}

/// Instead of the host's, of the phases that the device tells the times of.
void RoundExecutor::take_device_times(PhaseTimes& times) {
  PhaseTimes device{};
  std::array<bool, kPhases> told{};
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    const int mark = static_cast<int>(i);
    const std::optional<double> taken = backend_.microseconds_between(mark, mark + 1);
    if (!taken) continue;
    const auto phase = static_cast<std::size_t>(ended_[i]);
    device[phase] += *taken;
    told[phase] = true;
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    if (told[phase]) times[phase] = device[phase];
  }
}

}  // namespace tributary
