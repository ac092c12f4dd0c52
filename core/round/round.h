// Executes one round of a pool on one rank: queries out, leaves attended, roots out, tree finished.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
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

/// A round, or one of its two halves: items of their own, with their layers.
struct RoundPart {
  const RankPlan& plan;
  RoundProgram::Layers item_layer;  // of the plan's items
};

/// Runs the stages of RoundPrograms, which it owns.
class RoundExecutor {
 public:
  /// At most this many parts make a round.
  static constexpr std::size_t kMostParts = 2;

  /// `communicator` takes pointers of the backend's memory. Where it is on_stream(), that is the
  /// stream of `backend`: a round is enqueued as a whole then, and waited for once, at its end.
  /// `weights` as of RoundProgram.
  RoundExecutor(const AttentionShape& shape, Backend& backend, Communicator& communicator,
                Cache& cache, const std::vector<LeafWeights>& weights = {});

  /// Runs the plan with item i at layer item_layer[i]. A failure of this rank's own work (the
  /// client or the backend throws) goes to `failure`, and the rank still enters every collective of
  /// the round; with `failure` set on entry it does nothing but that. The result is not ok only
  /// when the communicator failed: nothing more can be exchanged then. On return nothing of the
  /// round is under way, whatever came of it; only after a failure of the communicator may a device
  /// that answers no more leave some.
  Status run(const RankPlan& plan, RoundProgram::Layers item_layer, PoolClient& client,
             Deadline deadline, Status& failure, PhaseTimes& times);
  /// The same of one part, or of two halves, where the exchanges of each go on while the other is
  /// attended: the first half's queries, then the second's beside the first half's leaves, the
  /// first half's states beside the second's leaves, the end of the first half's trees beside the
  /// second's states. The client is called once for both.
  Status run(std::span<const RoundPart> parts, PoolClient& client, Deadline deadline,
             Status& failure, PhaseTimes& times);

  /// Between rounds, as RoundProgram::trim.
  void trim(Deadline::Clock::time_point now);

  /// What the last run called its client for: the items of all its parts that are homed here, with
  /// their places in item_layer() and their records in states().
  [[nodiscard]] std::span<const HomedItem> homed() const noexcept { return homed_; }
  [[nodiscard]] std::span<const std::int32_t> item_layer() const noexcept { return item_layer_; }
  [[nodiscard]] const float* states() const noexcept { return records_.states.as<float>(); }
  /// See RoundProgram.
  [[nodiscard]] std::uint64_t exchanged_bytes() const noexcept;

  /// Stages of a part, and what the last run left in their memory.
  [[nodiscard]] RoundProgram& program(std::size_t part = 0) noexcept { return programs_[part]; }

 private:
  struct Turn;
  Status execute(std::span<const RoundPart> parts, PoolClient& client, Deadline deadline,
                 Status& failure, PhaseTimes& times);
  void prepare(std::span<const RoundPart> parts);
  Status take_turn(const Turn& turn, const RoundPart& part, Deadline deadline, Status& failure,
                   PhaseTimes& times);
  void synchronize_unless_ordered(Deadline deadline);
  void end_phase(Phase phase, Status& failure);
  void take_device_times(PhaseTimes& times);

  AttentionShape shape_;
  Backend& backend_;
  Communicator& communicator_;
  RoundRecords records_;
  std::array<RoundProgram, kMostParts> programs_;
  RecordedCalls recorded_;
  std::vector<HomedItem> homed_;
  std::vector<std::int32_t> item_layer_;
  std::vector<Phase> ended_;  // that of index i lies between the backend's marks i and i + 1
};

}  // namespace tributary
