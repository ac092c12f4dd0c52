#include "core/cost/cost_model.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>

#include "core/base/error.h"

namespace tributary {
namespace {

/// One worker's time for each phase of a layer.
class WorkerCost {
 public:
  WorkerCost(const CostModelConfig& config, int workers, int rank, const RankPlan& plan)
      : config_(config), c_(config.costs), workers_(workers), rank_(rank), plan_(plan) {}

  [[nodiscard]] double project_us() const {
    double tokens = 0;
    for (const HomedItem& item : plan_.homed) tokens += item.tokens;
    if (tokens == 0) return 0;
    const ProjectionWork& work = config_.projection;
    return records_us(tokens) + work.weight_bytes * c_.weight_byte_ns * 1e-3 +
           tokens * work.token_gflop * c_.weight_gflop_us;
  }

  [[nodiscard]] double query_exchange_us() const {
    if (!plan_.tokens_travel) return 0;
    const double gathered = plan_.exchange == Exchange::kAllToAll
                                ? records_us(static_cast<double>(plan_.token_send_index.size()))
                                : 0;
    return gathered + exchange_us(plan_.token_recv_counts, token_bytes());
  }

  [[nodiscard]] double attend_us() const {
    if (plan_.tasks.empty()) return 0;
    const AttentionShape& shape = config_.attention;
    const auto row_bytes = static_cast<double>(shape.row_bytes());
    // Scores over the whole row, the weighted sum over its latent part; 2 FLOP each.
    const double row_gflop = 2e-9 * (2.0 * shape.kv_lora_rank + shape.qk_rope_head_dim) *
                             static_cast<double>(shape.heads);
    double us = c_.attend_us;
    for (const LeafTask& task : plan_.tasks) {
      const auto rows = static_cast<double>(task.rows);
      us += c_.attend_task_us + rows * row_bytes * c_.attend_byte_ns * 1e-3 +
            rows * task.tokens * row_gflop * c_.attend_gflop_us;
    }
    return us + merges_us(plan_.local_merges);
  }

  [[nodiscard]] double partial_exchange_us() const {
    return plan_.states_travel ? exchange_us(plan_.state_recv_counts, state_bytes()) : 0;
  }

  [[nodiscard]] double combine_us() const { return merges_us(plan_.home_merges); }

 private:
  [[nodiscard]] double token_bytes() const {
    return static_cast<double>(config_.attention.token_record_bytes());
  }
  [[nodiscard]] double state_bytes() const {
    return static_cast<double>(config_.attention.state_shape().record_bytes());
  }
  [[nodiscard]] double records_us(double tokens) const {
    return tokens * (c_.record_us + token_bytes() * c_.record_byte_ns * 1e-3);
  }
  [[nodiscard]] double merges_us(const MergeSchedule& schedule) const {
    double us = 0;
    for (const std::vector<MergeOp>& level : schedule.levels()) {
      if (level.empty()) continue;
      us += c_.merge_us;
      for (const MergeOp& op : level) us += op.tokens * state_bytes() * c_.merge_byte_ns * 1e-3;
    }
    return us;
  }

  /// Messages and bytes inside the node and between nodes go at the same time.
  [[nodiscard]] double exchange_us(const std::vector<std::int64_t>& counts,
                                   double record_bytes) const {
    const int node = rank_ / config_.workers_per_node;
    double near = 0;
    double far = 0;
    for (int r = 0; r < workers_; ++r) {
      if (r == rank_) continue;
      const double bytes = static_cast<double>(counts[static_cast<std::size_t>(r)]) * record_bytes;
      (r / config_.workers_per_node == node ? near : far) += bytes;
    }
    const bool gather = plan_.exchange == Exchange::kAllGather;
    const int neighbours = std::min(workers_, config_.workers_per_node);
    const auto messages = [&](int ranks) {
      return gather ? std::bit_width(static_cast<unsigned>(std::max(ranks, 1) - 1)) : ranks - 1;
    };
    const int near_messages = messages(neighbours);
    const int far_messages = messages(workers_) - near_messages;
    const double near_us =
        near_messages * (gather ? c_.all_gather_message_us : c_.all_to_all_message_us) +
        near * (gather ? c_.all_gather_byte_ns : c_.all_to_all_byte_ns) * 1e-3;
    const double far_us = far_messages * c_.network_message_us + far * c_.network_byte_ns * 1e-3;
    return std::max(near_us, far_us);
  }

  const CostModelConfig& config_;
  const MachineCosts& c_;
  int workers_;
  int rank_;
  const RankPlan& plan_;
};

}  // namespace

StepPrediction predict_step(const CostModelConfig& config, const Routing& routing, int workers,
                            Exchange exchange) {
  if (config.layers < 1 || config.workers_per_node < 1 || workers < 1) {
    fail(ErrorCode::kInvalidArgument,
         "cost model: {} layers, {} workers of which {} a node; expected at least 1 each",
         config.layers, workers, config.workers_per_node);
  }
  StepPrediction step;
  const auto raise = [&](Phase phase, double us) {
    double& slot = step.phase_us[static_cast<std::size_t>(phase)];
    slot = std::max(slot, us * config.layers);
  };
  RankPlan plan;
  for (int rank = 0; rank < workers; ++rank) {
    PlanBuilder(workers, rank, config.leaf_tokens).build(routing, exchange, plan);
    const WorkerCost worker(config, workers, rank, plan);
    const double attend = worker.attend_us();
    step.worker_attend_us.push_back(attend * config.layers);
    raise(Phase::kProject, worker.project_us());
    raise(Phase::kQueryExchange, worker.query_exchange_us());
    raise(Phase::kAttend, attend);
    raise(Phase::kPartialExchange, worker.partial_exchange_us());
    raise(Phase::kCombine, worker.combine_us());
  }
  const auto items = static_cast<double>(routing.items.size());
  const auto [least, most] = std::ranges::minmax_element(step.worker_attend_us);
  const double waited = (*most - *least) / config.layers;
  const double late =
      std::min(config.costs.wait_late_most_us,
               config.costs.wait_late_share * std::max(0.0, waited - config.costs.wait_free_us));
  step.phase_us[static_cast<std::size_t>(Phase::kPlan)] = items * config.costs.plan_item_us;
  step.other_us = config.costs.step_us + config.layers * (config.costs.round_us + late);
  step.step_us = std::accumulate(step.phase_us.begin(), step.phase_us.end(), step.other_us);
  return step;
}

}  // namespace tributary
