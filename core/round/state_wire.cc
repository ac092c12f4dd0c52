#include "core/round/state_wire.h"

#include <numeric>

namespace tributary {

StateWire::StateWire(const AttentionShape& shape, Backend& backend, int rank)
    : shape_(shape), rank_(static_cast<std::size_t>(rank)), sent_(backend), received_(backend) {}

std::size_t StateWire::bytes(std::int64_t records) const noexcept {
  return static_cast<std::size_t>(records) * shape_.sent_state_bytes();
}

void StateWire::reserve(const RankPlan& plan) {
  sent_.reserve(bytes(plan.sent_states));
  received_.reserve(bytes(plan.received_states));
}

bool StateWire::fits(const RankPlan& plan) const {
  return bytes(plan.sent_states) <= sent_.bytes() &&
         bytes(plan.received_states) <= received_.bytes();
}

void StateWire::trim(Deadline::Clock::time_point now) {
  sent_.trim(now);
  received_.trim(now);
}

void StateWire::add_pack(const float* states, const RankPlan& plan,
                         std::vector<Call>& calls) const {
  if (plan.sent_states == 0) return;
  const StateShape state = shape_.state_shape();
  const std::int64_t values = std::int64_t{state.heads} * state.width;
  const float* from = states + static_cast<std::size_t>(plan.send_begin()) * state.record_floats();
  calls.emplace_back(ConvertArgs{.rows = plan.sent_states,
                                 .src = from + values,
                                 .src_row = plain_row(state.heads),
                                 .src_stride_bytes = state.record_bytes(),
                                 .dst = sent_.data(),
                                 .dst_row = plain_row(state.heads),
                                 .dst_stride_bytes = shape_.sent_state_bytes()});
  calls.emplace_back(ConvertArgs{.rows = plan.sent_states,
                                 .src = from,
                                 .src_row = plain_row(values),
                                 .src_stride_bytes = state.record_bytes(),
                                 .dst = sent_.data() + shape_.sent_lse_bytes(),
                                 .dst_row = plain_row(values, shape_.state_dtype),
                                 .dst_stride_bytes = shape_.sent_state_bytes()});
}

void StateWire::add_unpack(const RankPlan& plan, float* states, std::vector<Call>& calls) const {
  if (plan.home_states == 0) return;
  const auto own = plan.state_recv_counts.begin() + static_cast<std::ptrdiff_t>(rank_);
  const std::int64_t before = std::accumulate(plan.state_recv_counts.begin(), own, std::int64_t{0});
  const auto widen = [&](std::int64_t first, std::int64_t records) {
    add_widen(received_.data() + bytes(first),
              states + static_cast<std::size_t>(plan.recv_begin() + first) *
                           shape_.state_shape().record_floats(),
              records, calls);
  };
  if (*own == 0) return widen(0, plan.received_states);
  widen(0, before);
  widen(before + *own, plan.received_states - before - *own);
}

void StateWire::add_widen(const std::byte* from, float* to, std::int64_t records,
                          std::vector<Call>& calls) const {
  if (records == 0) return;
  const StateShape state = shape_.state_shape();
  const std::int64_t values = std::int64_t{state.heads} * state.width;
  calls.emplace_back(ConvertArgs{.rows = records,
                                 .src = from,
                                 .src_row = plain_row(state.heads),
                                 .src_stride_bytes = shape_.sent_state_bytes(),
                                 .dst = to + values,
                                 .dst_row = plain_row(state.heads),
                                 .dst_stride_bytes = state.record_bytes()});
  calls.emplace_back(ConvertArgs{.rows = records,
                                 .src = from + shape_.sent_lse_bytes(),
                                 .src_row = plain_row(values, shape_.state_dtype),
                                 .src_stride_bytes = shape_.sent_state_bytes(),
                                 .dst = to,
                                 .dst_row = plain_row(values),
                                 .dst_stride_bytes = state.record_bytes()});
}

}  // namespace tributary
