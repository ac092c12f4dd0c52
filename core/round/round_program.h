// A round on one rank as a list of stages, and the memory for its token and state records.
// RoundExecutor runs the list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/interface/communicator.h"
#include "core/model/attention_shape.h"
#include "core/plan/plan.h"
#include "core/round/phases.h"
#include "core/round/pool_client.h"
#include "core/round/scratch_buffer.h"

namespace tributary {

class RoundProgram {
 public:
  /// Item i of a plan is at layer item_layer[i].
  using Layers = std::span<const std::int32_t>;

  /// The client's part, then calls of the backend, then an exchange. A member is null if the stage
  /// has no such part. Stages of one phase follow one another.
  struct Stage {
    Phase phase;
    /// Whether the plan's round has this stage, the same on every rank; null: every round has it.
    bool (RoundProgram::*planned)(const RankPlan&) const = nullptr;
    void (RoundProgram::*client)(const RankPlan&, Layers, PoolClient&) const = nullptr;
    /// Appends the stage's calls to calls_.
    void (RoundProgram::*add_calls)(const RankPlan&, Layers) = nullptr;
    /// The kind of the calls for RecordedCalls.
    std::uint64_t (*kind)(const RankPlan&) = nullptr;
    Status (RoundProgram::*exchange)(const RankPlan&, Deadline) = nullptr;
  };
  /// All stages, in the order of execution.
  [[nodiscard]] static std::span<const Stage> stages() noexcept;

  /// `communicator` takes pointers of the backend's memory. All must outlive the program.
  RoundProgram(const AttentionShape& shape, Backend& backend, Communicator& communicator,
               Cache& cache);

  /// Makes room for the plan's records. Earlier records may be lost.
  void reserve(const RankPlan& plan);
  /// Called between rounds: frees memory that rounds have not needed for a while.
  void trim(Deadline::Clock::time_point now);

  [[nodiscard]] bool planned(const Stage& stage, const RankPlan& plan) const;

  // The functions below are a stage's parts. They do nothing if the stage is not planned or has no
  // such part.

  void client_part(const Stage& stage, const RankPlan& plan, Layers item_layer,
                   PoolClient& client) const;
  /// The plan data of the calls is in the plan and `item_layer`. Valid until the next call of this
  /// function.
  [[nodiscard]] std::span<const Call> calls(const Stage& stage, const RankPlan& plan,
                                            Layers item_layer);
  Status exchange(const Stage& stage, const RankPlan& plan, Deadline deadline);

  /// Payload bytes of queries, rows and states that this rank sent to others, over all rounds.
  [[nodiscard]] std::uint64_t exchanged_bytes() const noexcept { return exchanged_bytes_; }
  /// Token records of the last round, in the backend's memory.
  [[nodiscard]] std::byte* tokens() const noexcept { return tokens_.data(); }
  /// State records of the last round.
  [[nodiscard]] const float* states() const noexcept { return states_.as<float>(); }
  /// The attention of the plan's leaves. Valid like calls().
  [[nodiscard]] AttendArgs attend_call(const RankPlan& plan, Layers item_layer) const;

 private:
  void write_tokens(const RankPlan& plan, Layers item_layer, PoolClient& client) const;
  void add_gather(const RankPlan& plan, Layers item_layer);
  void add_attend(const RankPlan& plan, Layers item_layer);
  [[nodiscard]] bool tokens_travel(const RankPlan& plan) const { return plan.tokens_travel; }
  [[nodiscard]] bool states_travel(const RankPlan& plan) const { return plan.states_travel; }
  void add_combine(const RankPlan& plan, Layers item_layer);
  [[nodiscard]] MergeArgs merges(const MergeSchedule& schedule);
  Status exchange_tokens(const RankPlan& plan, Deadline deadline);
  Status exchange_states(const RankPlan& plan, Deadline deadline);
  Status transfer(std::span<const std::byte> send, std::span<std::byte> recv, const RankPlan& plan,
                  Deadline deadline);

  AttentionShape shape_;
  Backend& backend_;
  Communicator& communicator_;
  Cache& cache_;
  ScratchBuffer tokens_;
  ScratchBuffer outgoing_tokens_;
  ScratchBuffer states_;
  std::uint64_t exchanged_bytes_ = 0;
  std::vector<Call> calls_;
  std::vector<MergeOp> merge_ops_;  // of calls_
  std::vector<std::size_t> send_bytes_;
  std::vector<std::size_t> recv_bytes_;
};

}  // namespace tributary
