// The two products of a pool that projects at its leaves: W_UK on the queries that a rank has
// received, W_UV on the state of each of its leaves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/interface/backend.h"
#include "core/interface/leaf_weights.h"
#include "core/model/attention_shape.h"
#include "core/plan/plan.h"
#include "core/round/scratch_buffer.h"

namespace tributary {

/// Throws kInvalidArgument unless there is one pair of weights of the shape's sizes for each layer,
/// or none where the shape wants none.
void check_leaf_weights(const AttentionShape& shape, int layers,
                        std::span<const LeafWeights> weights);

/// Copies the queries of a round together and absorbs them, has the leaves attended into states of
/// width kv_lora_rank, and makes of these the states of width v_head_dim that are merged. Queries
/// and states are ordered by layer, so that each layer's are one product; a product's results do
/// not depend on what else is in it (Backend promises that), so neither order nor batch is in the
/// bits. Wants plans whose leaves have states of their own (PlanBuilder).
///
/// Letters: H heads, C kv_lora_rank, R qk_rope_head_dim, N qk_nope_head_dim, V v_head_dim.
class LeafProjector {
 public:
  using Layers = std::span<const std::int32_t>;

  LeafProjector(const AttentionShape& shape, Backend& backend, std::vector<LeafWeights> weights);

  /// As of RoundProgram.
  void reserve(const RankPlan& plan);
  [[nodiscard]] bool fits(const RankPlan& plan) const;
  void trim(Deadline::Clock::time_point now);

  /// Orders the round's queries and leaf states by layer. Before the calls that follow.
  void order(const RankPlan& plan, Layers item_layer);
  /// From token records, [H, N + R] of the query type in front of each, to absorbed queries.
  void add_absorb(const std::byte* tokens, std::vector<Call>& calls);
  /// The attention of the plan's leaves, with other queries, tasks and states.
  [[nodiscard]] AttendArgs attended(AttendArgs planned) const;
  /// From the leaves' states to the first records of `states`, of width V.
  void add_values(float* states, std::vector<Call>& calls) const;
  /// Where a leaf's state of the plan is, once projected; other records are where they were.
  [[nodiscard]] std::int64_t record(std::int64_t planned) const {
    const auto index = static_cast<std::size_t>(planned);
    return planned >= 0 && index < record_.size() ? record_[index] : planned;
  }

  [[nodiscard]] const LeafWeights& weights(std::int32_t layer) const {
    return weights_[static_cast<std::size_t>(layer)];
  }
  /// The memory that calls name: a recording is good for as long as these are the same.
  [[nodiscard]] std::array<const std::byte*, 4> arenas() const noexcept {
    return {gathered_.data(), plain_.data(), absorbed_.data(), leaf_states_.data()};
  }

 private:
  /// The queries and leaf states of one layer, each a range of records.
  struct Group {
    std::int32_t layer = 0;
    std::int64_t first_query = 0, queries = 0;
    std::int64_t first_state = 0, states = 0;
  };
  [[nodiscard]] std::size_t plain_bytes() const noexcept;      // of a query [H, N + R], fp32
  [[nodiscard]] std::size_t absorbed_floats() const noexcept;  // of a query [H, C + R]
  /// Absorbed queries in fp32, and behind them the rounded ones where the query type is another.
  [[nodiscard]] std::size_t absorbed_bytes(std::int64_t queries) const noexcept;

  AttentionShape shape_;
  std::vector<LeafWeights> weights_;
  ScratchBuffer gathered_, plain_, absorbed_, leaf_states_;
  // Of the round.
  std::vector<std::int32_t> by_layer_;  // tasks
  std::vector<LeafTask> tasks_;
  std::vector<std::int64_t> query_index_;  // token records, in the order of the queries
  std::vector<std::int64_t> record_;       // of the plan's local states
  std::vector<Group> groups_;
};

}  // namespace tributary
