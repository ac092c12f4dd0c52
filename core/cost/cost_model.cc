#include "core/cost/cost_model.h"

#include <algorithm>
#include <cstddef>

namespace tributary {
namespace {

struct Counts {
  std::int64_t merges = 0, levels = 0;
};

Counts counts_of(const MergeSchedule& schedule) {
  Counts counts;
  for (const std::vector<MergeOp>& level : schedule.levels()) {
    if (!level.empty()) ++counts.levels;
    for (const MergeOp& op : level) counts.merges += op.tokens;
  }
  return counts;
}

/// Counts the work in a rank's part of a plan.
class PlanWork {
 public:
  PlanWork(const RoundPrices& prices, int workers, int rank)
      : prices_(prices),
        workers_(workers),
        rank_(rank),
        node_(rank / prices.config().workers_per_node) {}

  [[nodiscard]] RoundWork of(const RankPlan& plan) const {
    RoundWork work;
    for (const HomedItem& item : plan.homed) work.tokens += item.tokens;
    work.attend = attend_of(plan);
    const Counts here = counts_of(plan.local_merges);
    const Counts home = counts_of(plan.home_merges);
    work.attend.merges = here.merges;
    work.attend.merge_levels = here.levels;
    work.home_merges = home.merges;
    work.home_merge_levels = home.levels;
    const bool gather = plan.exchange == Exchange::kAllGather;
    if (plan.tokens_travel) {
      work.gathered = gather ? 0 : std::ssize(plan.token_send_index);
      work.queries = inbound(plan.exchange, plan.token_send_counts, plan.token_recv_counts);
    }
    if (plan.states_travel) {
      work.states = inbound(plan.exchange, plan.state_send_counts, plan.state_recv_counts);
    }
    return work;
  }

 private:
  /// The attention without its merges.
  [[nodiscard]] AttendWork attend_of(const RankPlan& plan) const {
    AttendWork work;
    const std::int64_t topk = prices_.config().attention.topk;
    for (const LeafTask& task : plan.tasks) {
      const std::int64_t tokens = task.query_position + 1;
      const AttendedLength length{tokens, ceil_div(tokens, prices_.config().leaf_tokens)};
      const std::int64_t rows = length.rows_of(1, task.rows, topk);
      ++work.leaves;
      work.rows += topk > 0 ? rows * task.tokens : rows;  // each token reads its own
      work.row_tokens += rows * task.tokens;
    }
    return work;
  }

  /// An all-to-all sends nothing to a rank for which it has nothing.
  [[nodiscard]] Inbound inbound(Exchange exchange, const std::vector<std::int64_t>& sent,
                                const std::vector<std::int64_t>& received) const {
    const bool gather = exchange == Exchange::kAllGather;
    Inbound in = gather ? prices_.gather_messages() : Inbound{};
    Inbound peers;  // `near`, `far`: receivers; `*_messages`: senders
    for (int r = 0; r < workers_; ++r) {
      if (r == rank_) continue;
      const auto i = static_cast<std::size_t>(r);
      const bool near = r / prices_.config().workers_per_node == node_;
      (near ? in.near : in.far) += received[i];
      (near ? peers.near : peers.far) += sent[i] > 0 ? 1 : 0;
      (near ? peers.near_messages : peers.far_messages) += received[i] > 0 ? 1 : 0;
    }
    if (!gather) {
      in.near_messages = std::max(peers.near, peers.near_messages);
      in.far_messages = std::max(peers.far, peers.far_messages);
    }
    return in;
  }

  const RoundPrices& prices_;
  int workers_, rank_, node_;
};

}  // namespace

StepPrediction predict_step(const CostModelConfig& config, const Routing& routing, int workers,
                            Exchange exchange) {
  const RoundPrices prices(config, workers);
  RoundTimes round;
  StepPrediction step;
  RankPlan plan;
  for (int rank = 0; rank < workers; ++rank) {
    PlanBuilder(workers, rank, config.leaf_tokens).build(routing, exchange, plan);
    const WorkerTimes worker = prices.times(PlanWork(prices, workers, rank).of(plan), exchange);
    round.see(worker);
    step.worker_attend_us.push_back(worker.attend_us * config.layers);
  }
  const auto items = std::ssize(routing.items);
  step.phase_us = round.phase_us(config, items);
  step.other_us = round.other_us(config);
  step.step_us = round.step_us(config, items);
  return step;
}

}  // namespace tributary
