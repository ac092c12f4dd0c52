#include "deploy/app/simulate/round_clock.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/cache/leaves.h"

namespace tributary {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

void RoundClock::Merges::add(std::size_t at, std::int32_t merges) {
  levels -= level[at] != 0 ? 1 : 0;
  level[at] += merges;
  levels += level[at] != 0 ? 1 : 0;
  total += merges;
}

RoundClock::RoundClock(const CostModelConfig& config, int workers, Exchange exchange)
    : config_(config), workers_(workers), exchange_(exchange) {
  if (config.layers < 1 || config.workers_per_node < 1 || workers < 1) {
    fail(ErrorCode::kInvalidArgument,
         "round clock: {} layers, {} workers of which {} a node; expected at least 1 each",
         config.layers, workers, config.workers_per_node);
  }
  const AttentionShape& shape = config.attention;
  const double row_gflop = 2e-9 * (2.0 * shape.kv_lora_rank + shape.qk_rope_head_dim) * shape.heads;
  row_us_ = static_cast<double>(shape.row_bytes()) * config.costs.attend_byte_ns * 1e-3 +
            row_gflop * config.costs.attend_gflop_us;
  work_.resize(at(workers));
}

bool RoundClock::same_node(std::int64_t a, std::int64_t b) const {
  return a / config_.workers_per_node == b / config_.workers_per_node;
}

void RoundClock::count(const Sequence& sequence, std::int64_t rows, int sign) {
  const std::int64_t leaf_tokens = config_.leaf_tokens;
  const std::int64_t leaves = ceil_div(rows, leaf_tokens);
  const std::int64_t home_rank = sequence.home;
  Work& home = work_[at(home_rank)];
  states_.clear();
  spread_.clear();
  std::int64_t roots_away = 0;
  for_each_owner_run(
      sequence, leaves, [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
        Work& work = work_[at(owner)];
        work.rows += sign * (std::min(end * leaf_tokens, rows) - begin * leaf_tokens);
        work.tasks += sign * (end - begin);
        if (end == leaves) work.growing += sign;
        spread_.push_back(owner);
        nodes_.clear();
        append_subtree_roots(begin, end, leaves, nodes_);
        for (const TreeNode& node : nodes_) {
          states_.push_back({node, static_cast<std::int64_t>(states_.size())});
          // Pairs of neighbours merge, an odd one goes up as it is.
          std::int64_t held = std::min(node.end_leaf(), leaves) - node.first_leaf();
          for (std::size_t level = 0; held > 1; ++level, held = ceil_div(held, 2)) {
            work.local.add(level, sign * static_cast<std::int32_t>(held / 2));
          }
          if (owner == home_rank) continue;
          ++roots_away;
          work.shared_roots += sign;
          (same_node(owner, home_rank) ? home.roots_near : home.roots_far) += sign;
        }
      });
  std::ranges::sort(spread_);
  spread_.erase(std::ranges::unique(spread_).begin(), spread_.end());
  bool exchanged = false;
  for (const std::int32_t worker : spread_) {
    if (worker == home_rank) continue;
    exchanged = true;
    Work& work = work_[at(worker)];
    (same_node(worker, home_rank) ? work.queries_near : work.queries_far) += sign;
    home.queries_out += sign;
  }
  if (exchanged) home.shared_queries += sign;
  home.homed += sign;
  sequences_ += sign;
  travelling_queries_ += exchanged ? sign : 0;
  travelling_roots_ += sign * roots_away;
  count_home_merges(sequence, leaves, sign);
}

void RoundClock::count_home_merges(const Sequence& sequence, std::int64_t leaves, int sign) {
  Merges& merges = work_[at(sequence.home)].home;
  if (states_.size() == 1) {
    // The home's own root is the result; another worker's is copied there.
    if (sequence.leaves.front().owner != sequence.home) merges.add(0, sign);
    return;
  }
  schedule_.clear();
  schedule_.add(states_, tree_height(leaves), /*final_state=*/-1, 1);
  for (std::size_t level = 0; level < schedule_.levels().size(); ++level) {
    const auto ops = static_cast<std::int32_t>(schedule_.levels()[level].size());
    if (ops > 0) merges.add(level, sign * ops);
  }
}

void RoundClock::tick() {
  for (Work& work : work_) work.rows += work.growing;
}

double RoundClock::balance() const {
  std::int64_t most = 0;
  std::int64_t sum = 0;
  for (const Work& work : work_) {
    most = std::max(most, work.rows);
    sum += work.rows;
  }
  return sum == 0 ? 1 : static_cast<double>(most) * workers_ / static_cast<double>(sum);
}

double RoundClock::records_us(double records) const {
  const auto bytes = static_cast<double>(config_.attention.token_record_bytes());
  return records * (config_.costs.record_us + bytes * config_.costs.record_byte_ns * 1e-3);
}

double RoundClock::project_us(const Work& work) const {
  if (work.homed == 0) return 0;
  const auto tokens = static_cast<double>(work.homed);
  return records_us(tokens) +
         config_.projection.weight_bytes * config_.costs.weight_byte_ns * 1e-3 +
         tokens * config_.projection.token_gflop * config_.costs.weight_gflop_us;
}

double RoundClock::merges_us(const Merges& merges) const {
  const auto bytes = static_cast<double>(config_.attention.state_shape().record_bytes());
  return merges.levels * config_.costs.merge_us +
         static_cast<double>(merges.total) * bytes * config_.costs.merge_byte_ns * 1e-3;
}

double RoundClock::attend_us(const Work& work) const {
  if (work.tasks == 0) return 0;
  return config_.costs.attend_us + static_cast<double>(work.tasks) * config_.costs.attend_task_us +
         static_cast<double>(work.rows) * row_us_ + merges_us(work.local);
}

double RoundClock::exchange_us(Exchange exchange, const Records& records,
                               double record_bytes) const {
  const MachineCosts& c = config_.costs;
  const bool gather = exchange == Exchange::kAllGather;
  const auto messages = [&](int ranks) {
    return gather ? std::bit_width(static_cast<unsigned>(std::max(ranks, 1) - 1)) : ranks - 1;
  };
  const int near_messages = messages(std::min(workers_, config_.workers_per_node));
  const int far_messages = messages(workers_) - near_messages;
  const double near_us =
      near_messages * (gather ? c.all_gather_message_us : c.all_to_all_message_us) +
      records.near * record_bytes * (gather ? c.all_gather_byte_ns : c.all_to_all_byte_ns) * 1e-3;
  const double far_us =
      far_messages * c.network_message_us + records.far * record_bytes * c.network_byte_ns * 1e-3;
  return std::max(near_us, far_us);
}

RoundTime RoundClock::time() const {
  if (exchange_ != Exchange::kAuto) return time(exchange_);
  const RoundTime narrow = time(Exchange::kAllToAll);
  if (travelling_queries_ == 0) return narrow;
  const RoundTime wide = time(Exchange::kAllGather);
  return wide.step_us < narrow.step_us ? wide : narrow;
}

RoundTime RoundClock::time(Exchange exchange) const {
  const bool gather = exchange == Exchange::kAllGather;
  const auto query_bytes = static_cast<double>(config_.attention.token_record_bytes());
  const auto root_bytes = static_cast<double>(config_.attention.state_shape().record_bytes());
  // Of an all-gather: what the workers of each node contribute.
  struct Shared {
    double queries = 0, roots = 0;
  };
  std::vector<Shared> node(gather ? at(ceil_div(workers_, config_.workers_per_node)) : 0);
  for (std::int64_t w = 0; gather && w < workers_; ++w) {
    Shared& sum = node[at(w / config_.workers_per_node)];
    sum.queries += static_cast<double>(work_[at(w)].shared_queries);
    sum.roots += static_cast<double>(work_[at(w)].shared_roots);
  }
  RoundTime round;
  round.exchange = exchange;
  PhaseTimes slowest{};
  const auto raise = [&](Phase phase, double us) {
    double& slot = slowest[static_cast<std::size_t>(phase)];
    slot = std::max(slot, us);
  };
  double least_attend = std::numeric_limits<double>::infinity();
  double most_attend = 0;
  for (std::int64_t w = 0; w < workers_; ++w) {
    const Work& work = work_[at(w)];
    raise(Phase::kProject, project_us(work));
    const double attend = attend_us(work);
    raise(Phase::kAttend, attend);
    least_attend = std::min(least_attend, attend);
    most_attend = std::max(most_attend, attend);
    raise(Phase::kCombine, merges_us(work.home));
    Records queries{static_cast<double>(work.queries_near), static_cast<double>(work.queries_far)};
    Records roots{static_cast<double>(work.roots_near), static_cast<double>(work.roots_far)};
    if (gather) {
      const Shared& peers = node[at(w / config_.workers_per_node)];
      queries = {peers.queries - static_cast<double>(work.shared_queries),
                 static_cast<double>(travelling_queries_) - peers.queries};
      roots = {peers.roots - static_cast<double>(work.shared_roots),
               static_cast<double>(travelling_roots_) - peers.roots};
    }
    round.bytes.node += queries.near * query_bytes + roots.near * root_bytes;
    round.bytes.network += queries.far * query_bytes + roots.far * root_bytes;
    if (travelling_queries_ > 0) {
      const double gathered = gather ? 0 : records_us(static_cast<double>(work.queries_out));
      raise(Phase::kQueryExchange, gathered + exchange_us(exchange, queries, query_bytes));
    }
    if (travelling_roots_ > 0) {
      raise(Phase::kPartialExchange, exchange_us(exchange, roots, root_bytes));
    }
  }
  const MachineCosts& c = config_.costs;
  const double late =
      std::min(c.wait_late_most_us,
               c.wait_late_share * std::max(0.0, most_attend - least_attend - c.wait_free_us));
  for (std::size_t p = 0; p < kPhases; ++p) round.phase_us[p] = slowest[p] * config_.layers;
  round.phase_us[static_cast<std::size_t>(Phase::kPlan)] =
      static_cast<double>(sequences_) * c.plan_item_us;
  round.other_us = c.step_us + config_.layers * (c.round_us + late);
  round.step_us = std::accumulate(round.phase_us.begin(), round.phase_us.end(), round.other_us);
  round.bytes.node *= config_.layers;
  round.bytes.network *= config_.layers;
  return round;
}

}  // namespace tributary
