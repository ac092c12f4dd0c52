// Partial states as they travel, where they are rounded on the way: what is sent is made of the
// states that a rank has merged, and what has come is made into states that its home merges.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/interface/backend.h"
#include "core/model/attention_shape.h"
#include "core/plan/plan.h"
#include "core/round/scratch_buffer.h"

namespace tributary {

/// Records of AttentionShape::sent_state_bytes(), rounded once: a subtree root travels once, from
/// the worker that merged it straight to its home. States that stay are not touched. For shapes
/// that round their states alone.
class StateWire {
 public:
  StateWire(const AttentionShape& shape, Backend& backend, int rank);

  /// As of RoundProgram.
  void reserve(const RankPlan& plan);
  [[nodiscard]] bool fits(const RankPlan& plan) const;
  void trim(Deadline::Clock::time_point now);

  /// From the plan's states to send, records of `states`, to sent().
  void add_pack(const float* states, const RankPlan& plan, std::vector<Call>& calls) const;
  /// From received() to the plan's received states, but for this rank's own share of an all-gather.
  /// Nothing where this rank's home merges none of them.
  void add_unpack(const RankPlan& plan, float* states, std::vector<Call>& calls) const;

  [[nodiscard]] std::span<const std::byte> sent(const RankPlan& plan) const {
    return {sent_.data(), bytes(plan.sent_states)};
  }
  [[nodiscard]] std::span<std::byte> received(const RankPlan& plan) const {
    return {received_.data(), bytes(plan.received_states)};
  }
  /// The memory that calls name: a recording is good for as long as these are the same.
  [[nodiscard]] std::array<const std::byte*, 2> arenas() const noexcept {
    return {sent_.data(), received_.data()};
  }

 private:
  void add_widen(const std::byte* from, float* to, std::int64_t records,
                 std::vector<Call>& calls) const;
  [[nodiscard]] std::size_t bytes(std::int64_t records) const noexcept;

  AttentionShape shape_;
  std::size_t rank_;
  ScratchBuffer sent_, received_;
};

}  // namespace tributary
