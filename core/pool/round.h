// Executes one round of a pool on one rank: queries out, leaves attended, roots out, tree finished.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/interface/communicator.h"
#include "core/interface/recorded_calls.h"
#include "core/plan/plan.h"
#include "core/pool/phases.h"
#include "core/pool/pool_client.h"
#include "core/pool/scratch_buffer.h"

namespace tributary {

/// What a round's arithmetic needs to know; equal on all ranks of a pool.
struct AttentionShape {
  int heads = 0;
  int kv_lora_rank = 0;
  int qk_rope_head_dim = 0;
  DType row_dtype = DType::kBF16;
  DType query_dtype = DType::kBF16;
  float softmax_scale = 0;

  [[nodiscard]] int latent_dim() const noexcept { return kv_lora_rank + qk_rope_head_dim; }
  [[nodiscard]] std::size_t query_bytes() const noexcept {
    return static_cast<std::size_t>(heads) * static_cast<std::size_t>(latent_dim()) *
           dtype_bytes(query_dtype);
  }
  /// A query and a new latent row.
  [[nodiscard]] std::size_t token_record_bytes() const noexcept {
    return query_bytes() + static_cast<std::size_t>(latent_dim()) * dtype_bytes(row_dtype);
  }
  [[nodiscard]] StateShape state_shape() const noexcept { return {heads, kv_lora_rank}; }
};

/// A round whose device work was recorded, for an engine that captures a step of its own. Its
/// executor outlives it, and it every graph of the engine that it is part of.
struct RecordedRound {
  RankPlan plan;  // as recorded
  CallsKey arenas;
  std::unique_ptr<Recording> send, attend, combine;  // null: nothing to do
};

/// Owns the arenas of token and state records.
class RoundExecutor {
 public:
  /// `communicator` takes pointers of the backend's memory. Where it is on_stream(), that is the
  /// stream of `backend`: a round is enqueued as a whole then, and waited for once, at its end.
  RoundExecutor(const AttentionShape& shape, Backend& backend, Communicator& communicator,
                Cache& cache);

  /// Runs the plan with item i at layer item_layer[i]. A failure of this rank's own work (the
  /// client or the backend throws) goes to `failure`, and the rank still enters every collective of
  /// the round; with `failure` set on entry it does nothing but that. The result is not ok only
  /// when the communicator failed: nothing more can be exchanged then. On return nothing of the
  /// round is under way, whatever came of it; only after a failure of the communicator may a device
  /// that answers no more leave some.
  Status run(const RankPlan& plan, std::span<const std::int32_t> item_layer, PoolClient& client,
             Deadline deadline, Status& failure, PhaseTimes& times);

  // For engines that capture their step, layers of their own in between: one recorded round for
  // each layer, with an engine that writes tokens() and reads states() itself, and waits, deadlines
  // and agreement between ranks that are the engine's too.
  //
  //   right: record_round for every layer; begin the capture; enqueue each where it belongs; end
  //   it;
  //          then for every step: refill_round for every layer, and launch the engine's graph;
  //   wrong: run() or record_round() of a larger plan in between, which moves the arenas:
  //   refill_round
  //          says no, and the engine has to record and capture anew.

  /// Throws kUnsupported for a backend without recordings, kFailedPrecondition where the plan's
  /// exchanges need a communicator that is on_stream().
  [[nodiscard]] RecordedRound record_round(const RankPlan& plan,
                                           std::span<const std::int32_t> item_layer);
  /// The next step's plan. False where what travels differs, or the plan does not fit: the round is
  /// of no more use then, all ranks have to record and capture anew.
  [[nodiscard]] bool refill_round(RecordedRound& round, const RankPlan& plan,
                                  std::span<const std::int32_t> item_layer);
  /// Enqueues the round. The communicator's calls are captured like the rest.
  Status enqueue_round(const RecordedRound& round, Deadline deadline);

  /// Between runs: gives memory back that rounds have not needed for a while.
  void trim(Deadline::Clock::time_point now);

  /// Payload bytes of queries, rows and states that this rank sent to others, over all runs.
  [[nodiscard]] std::uint64_t exchanged_bytes() const noexcept { return exchanged_bytes_; }
  /// Token records of the last run, in the backend's memory.
  [[nodiscard]] std::byte* tokens() const noexcept { return tokens_.data(); }
  /// State records of the last run.
  [[nodiscard]] const float* states() const noexcept { return states_.as<float>(); }

 private:
  void reserve(const RankPlan& plan);
  Status execute(const RankPlan& plan, std::span<const std::int32_t> item_layer, PoolClient& client,
                 Deadline deadline, Status& failure, PhaseTimes& times);
  void synchronize_unless_ordered(Deadline deadline);
  void end_phase(Phase phase, Status& failure);
  void take_device_times(PhaseTimes& times);
  Status exchange(std::span<const std::byte> send, std::span<std::byte> recv, const RankPlan& plan,
                  Deadline deadline);
  Status exchange_tokens(const RankPlan& plan, Deadline deadline);
  Status exchange_states(const RankPlan& plan, Deadline deadline);
  void gather_tokens(const RankPlan& plan);
  void attend(const RankPlan& plan, std::span<const std::int32_t> item_layer);
  void make_attend(const RankPlan& plan, std::span<const std::int32_t> item_layer);
  [[nodiscard]] CallsKey arenas() const;
  [[nodiscard]] bool fits(const RankPlan& plan) const;
  void combine(const MergeSchedule& schedule);
  void add_merges(const MergeSchedule& schedule, CallsKey& key) const;
  void merge(const MergeSchedule& schedule);

  AttentionShape shape_;
  Backend& backend_;
  Communicator& communicator_;
  Cache& cache_;
  ScratchBuffer tokens_;
  ScratchBuffer outgoing_tokens_;
  ScratchBuffer states_;
  RecordedCalls recorded_;
  std::uint64_t exchanged_bytes_ = 0;
  std::vector<std::size_t> send_bytes_;
  std::vector<std::size_t> recv_bytes_;
  std::vector<Phase> ended_;  // that of index i lies between the backend's marks i and i + 1
};

}  // namespace tributary
