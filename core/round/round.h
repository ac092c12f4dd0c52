// A round on one rank: a list of stages, the memory for its token and state records, and what runs
// the list.
#pragma once

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
#include "core/round/scratch_buffer.h"

namespace tributary {

class RoundExecutor {
 public:
  /// Item i of a plan is at layer item_layer[i].
  using Layers = std::span<const std::int32_t>;

  /// `communicator` takes pointers of the backend's memory. If it is on_stream(), it uses the
  /// stream of `backend`: a round is then enqueued as a whole and waited for once, at its end. All
  /// outlive the executor.
  RoundExecutor(const AttentionShape& shape, Backend& backend, Communicator& communicator,
                Cache& cache);

  /// Uses another communicator of the same kind from the next round on.
  void use(Communicator& communicator) noexcept { communicator_ = &communicator; }

  /// Runs the plan. A failure of this rank's own work (the client or the backend throws) goes to
  /// `failure`, and the rank still enters every collective of the round; with `failure` set on
  /// entry it does only that. The result is not ok only when the communicator failed: nothing more
  /// can be exchanged then. On return no work of the round is pending, whether it failed or not.
  /// The one exception: after a failure of the communicator, a device that no longer answers may
  /// leave some.
  Status run(const RankPlan& plan, Layers item_layer, PoolClient& client, Deadline deadline,
             Status& failure, PhaseTimes& times);
  /// Called between rounds: frees memory that rounds have not needed for a while.
  void trim(Time now);

  /// Payload bytes of queries, rows and states that this rank sent to others, over all rounds.
  [[nodiscard]] std::uint64_t exchanged_bytes() const noexcept { return exchanged_bytes_; }
  /// State records of the last round, in the backend's memory.
  [[nodiscard]] const float* states() const noexcept { return states_.as<float>(); }
  /// The attention of the plan's leaves, over the records of the last round. The plan data of the
  /// call is in the plan and `item_layer`.
  [[nodiscard]] AttendArgs attend_call(const RankPlan& plan, Layers item_layer) const;

 private:
  /// The client's part, then calls of the backend, then an exchange. A member is null if the stage
  /// has no such part. Stages of one phase follow one another.
  struct Stage {
    Phase phase;
    /// Whether the plan's round has this stage, the same on every rank; null: every round has it.
    bool RankPlan::*planned = nullptr;
    void (RoundExecutor::*client)(const RankPlan&, Layers, PoolClient&) const = nullptr;
    /// Appends the stage's calls to calls_.
    void (RoundExecutor::*add_calls)(const RankPlan&, Layers) = nullptr;
    /// The kind of the calls for RecordedCalls.
    std::uint64_t (*kind)(const RankPlan&) = nullptr;
    Status (RoundExecutor::*exchange)(const RankPlan&, Deadline) = nullptr;
  };
  /// All stages, in the order of execution.
  [[nodiscard]] static std::span<const Stage> stages() noexcept;

  Status execute(const RankPlan& plan, Layers item_layer, PoolClient& client, Deadline deadline,
                 Status& failure, PhaseTimes& times);
  /// Makes room for the plan's records. Earlier records may be lost.
  void reserve(const RankPlan& plan);
  void synchronize_unless_ordered(Deadline deadline);
  void end_phase(Phase phase, Status& failure);
  void take_device_times(PhaseTimes& times);

  void write_tokens(const RankPlan& plan, Layers item_layer, PoolClient& client) const;
  void add_gather(const RankPlan& plan, Layers item_layer);
  void add_attend(const RankPlan& plan, Layers item_layer);
  void add_combine(const RankPlan& plan, Layers item_layer);
  [[nodiscard]] MergeArgs merges(const MergeSchedule& schedule);
  Status exchange_tokens(const RankPlan& plan, Deadline deadline);
  Status exchange_states(const RankPlan& plan, Deadline deadline);
  Status transfer(std::span<const std::byte> send, std::span<std::byte> recv, const RankPlan& plan,
                  Deadline deadline);

  AttentionShape shape_;
  Backend& backend_;
  Communicator* communicator_;
  Cache& cache_;
  ScratchBuffer tokens_;
  ScratchBuffer outgoing_tokens_;
  ScratchBuffer states_;
  std::uint64_t exchanged_bytes_ = 0;
  RecordedCalls recorded_;
  std::vector<Call> calls_;         // of a stage; their plan data is in the plan and item_layer
  std::vector<MergeOp> merge_ops_;  // of calls_
  std::vector<std::size_t> send_bytes_;
  std::vector<std::size_t> recv_bytes_;
  std::vector<Phase> ended_;  // the phase of index i lies between the backend's marks i and i + 1
};

}  // namespace tributary
