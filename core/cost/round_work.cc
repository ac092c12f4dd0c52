#include "core/cost/round_work.h"

#include <algorithm>
#include <bit>

#include "core/base/error.h"

namespace tributary {

RoundPrices::RoundPrices(const CostModelConfig& config, int workers)
    : config_(config),
      workers_(workers),
      token_bytes_(static_cast<double>(config.attention.token_record_bytes())),
      state_bytes_(static_cast<double>(config.attention.state_shape().record_bytes())),
      row_bytes_(static_cast<double>(config.attention.row_bytes())),
      // Scores over the whole row, the weighted sum over its latent part; 2 FLOP each.
      row_gflop_(2e-9 * (2.0 * config.attention.kv_lora_rank + config.attention.qk_rope_head_dim) *
                 static_cast<double>(config.attention.heads)) {
  if (config.layers < 1 || config.workers_per_node < 1 || workers < 1) {
    fail(ErrorCode::kInvalidArgument,
         "cost model: {} layers, {} workers of which {} a node; expected at least 1 each",
         config.layers, workers, config.workers_per_node);
  }
}

double RoundPrices::gather_us(std::int64_t records) const {
  return static_cast<double>(records) *
         (config_.costs.record_us + token_bytes_ * config_.costs.record_byte_ns * 1e-3);
}

double RoundPrices::project_us(std::int64_t tokens) const {
  if (tokens == 0) return 0;
  const ProjectionWork& work = config_.projection;
  return gather_us(tokens) + work.weight_bytes * config_.costs.weight_byte_ns * 1e-3 +
         static_cast<double>(tokens) * work.token_gflop * config_.costs.weight_gflop_us;
}

double RoundPrices::merges_us(std::int64_t merges, std::int64_t levels) const {
  return static_cast<double>(levels) * config_.costs.merge_us +
         static_cast<double>(merges) * state_bytes_ * config_.costs.merge_byte_ns * 1e-3;
}

double RoundPrices::attend_us(const AttendWork& work) const {
  if (work.leaves == 0) return 0;
  const MachineCosts& c = config_.costs;
  const double reading = static_cast<double>(work.rows) * row_bytes_ * c.attend_byte_ns * 1e-3;
  const double arithmetic = static_cast<double>(work.row_tokens) * row_gflop_ * c.attend_gflop_us;
  return c.attend_us + static_cast<double>(work.leaves) * c.attend_task_us + reading + arithmetic -
         c.attend_overlap * std::min(reading, arithmetic) +
         merges_us(work.merges, work.merge_levels);
}

double RoundPrices::combine_us(std::int64_t merges, std::int64_t levels) const {
  return merges_us(merges, levels);
}

/// Messages and bytes inside the node and between nodes travel at the same time.
double RoundPrices::exchange_us(const Inbound& in, double record_bytes, Exchange exchange) const {
  const MachineCosts& c = config_.costs;
  const bool gather = exchange == Exchange::kAllGather;
  const double near_us = static_cast<double>(in.near_messages) *
                             (gather ? c.all_gather_message_us : c.all_to_all_message_us) +
                         static_cast<double>(in.near) * record_bytes *
                             (gather ? c.all_gather_byte_ns : c.all_to_all_byte_ns) * 1e-3;
  const double far_us = static_cast<double>(in.far_messages) * c.network_message_us +
                        static_cast<double>(in.far) * record_bytes * c.network_byte_ns * 1e-3;
  return std::max(near_us, far_us);
}

WorkerTimes RoundPrices::times(const RoundWork& work, Exchange exchange) const {
  return {.project_us = project_us(work.tokens),
          .queries_us = gather_us(work.gathered) + queries_us(work.queries, exchange),
          .attend_us = attend_us(work.attend),
          .states_us = states_us(work.states, exchange),
          .combine_us = combine_us(work.home_merges, work.home_merge_levels)};
}

Inbound RoundPrices::gather_messages() const {
  const auto messages = [](int ranks) {
    return static_cast<std::int64_t>(std::bit_width(static_cast<unsigned>(std::max(ranks, 1) - 1)));
  };
  const std::int64_t near = messages(std::min(workers_, config_.workers_per_node));
  return {.near = 0, .far = 0, .near_messages = near, .far_messages = messages(workers_) - near};
}

void RoundTimes::see(const WorkerTimes& worker) {
  slowest.project_us = std::max(slowest.project_us, worker.project_us);
  slowest.queries_us = std::max(slowest.queries_us, worker.queries_us);
  slowest.attend_us = std::max(slowest.attend_us, worker.attend_us);
  slowest.states_us = std::max(slowest.states_us, worker.states_us);
  slowest.combine_us = std::max(slowest.combine_us, worker.combine_us);
  least_attend_us = std::min(least_attend_us, worker.attend_us);
}

PhaseTimes RoundTimes::phase_us(const CostModelConfig& config, std::int64_t items) const {
  PhaseTimes times{};
  const auto set = [&](Phase phase, double us) { times[static_cast<std::size_t>(phase)] = us; };
  set(Phase::kPlan, static_cast<double>(items) * config.costs.plan_item_us);
  set(Phase::kProject, slowest.project_us * config.layers);
  set(Phase::kQueryExchange, slowest.queries_us * config.layers);
  set(Phase::kAttend, slowest.attend_us * config.layers);
  set(Phase::kPartialExchange, slowest.states_us * config.layers);
  set(Phase::kCombine, slowest.combine_us * config.layers);
  return times;
}

double RoundTimes::other_us(const CostModelConfig& config) const {
  const MachineCosts& c = config.costs;
  const double waited = std::max(0.0, slowest.attend_us - least_attend_us - c.wait_free_us);
  const double late = std::min(c.wait_late_most_us, c.wait_late_share * waited);
  return c.step_us + config.layers * (c.round_us + late);
}

double RoundTimes::step_us(const CostModelConfig& config, std::int64_t items) const {
  return config.layers * (slowest.project_us + slowest.queries_us + slowest.attend_us +
                          slowest.states_us + slowest.combine_us) +
         static_cast<double>(items) * config.costs.plan_item_us + other_us(config);
}

}  // namespace tributary
