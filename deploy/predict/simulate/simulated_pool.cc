#include "deploy/predict/simulate/simulated_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/sequence_table.h"
#include "core/cost/least_exchange.h"

namespace tributary {
namespace {

std::int64_t pages_of(std::int64_t tokens) {
  return ceil_div(tokens, static_cast<std::int64_t>(kPageTokens));
}

LinkBytes received_bytes(const CostModelConfig& cost, const RankPlan& plan, int rank) {
  const AttentionShape& shape = cost.attention;
  LinkBytes bytes;
  for (std::size_t r = 0; r < plan.token_recv_counts.size(); ++r) {
    if (std::cmp_equal(r, rank)) continue;
    const bool near = static_cast<int>(r) / cost.workers_per_node == rank / cost.workers_per_node;
    (near ? bytes.node : bytes.network) +=
        static_cast<double>(plan.token_recv_counts[r]) *
            static_cast<double>(shape.token_record_bytes()) +
        static_cast<double>(plan.state_recv_counts[r]) *
            static_cast<double>(shape.state_shape().record_bytes());
  }
  return bytes;
}

}  // namespace

SimulatedPool::SimulatedPool(const SimulatedPoolConfig& config, std::uint32_t incarnation)
    : config_(config),
      sequencer_({.placement = {.workers = config.workers, .model = config.cost},
                  .pages_per_worker = config.pages_per_worker,
                  .incarnation = incarnation,
                  .options = config.sequencer}),
      clock_(config.cost, config.workers, config.exchange),
      move_schedule_(move_schedule_config(config.sequencer.move_bytes_per_s,
                                          config.cost.attention.row_bytes()),
                     sequencer_),
      total_pages_(std::int64_t{config.workers} * config.pages_per_worker),
      free_pages_(total_pages_) {
  if (config.commit_tokens < 1 || config.commit_tokens > kMaxStepTokens) {
    fail(ErrorCode::kInvalidArgument, "{} tokens committed at once, expected 1 .. {}",
         config.commit_tokens, kMaxStepTokens);
  }
}

bool SimulatedPool::could_hold(const AdmitRequest& request) const {
  try {
    sequencer_.sequences().check(request);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTooLarge) return false;
    throw;
  }
}

bool SimulatedPool::admit(const AdmitRequest& request, std::int64_t tag) {
  const std::int64_t pages = pages_of(request.prompt_tokens + request.max_new_tokens);
  // Cheaper than a placement that cannot succeed.
  if (pages > free_pages_) return false;
  const auto id = sequencer_.sequences().admit(request, {.tag = tag});
  if (!id) return false;
  sequencer_.sequences().prompt_arrived(*id);
  prompt_tokens_ += request.prompt_tokens;
  present_tokens_ += sequencer_.ledger().table().at(*id).present_tokens;
  free_pages_ -= pages;
  ++sequences_;
  joining_.push_back(tag);
  opening_.push_back({{.id = *id, .tag = tag, .opened = 0}, true});
  return true;
}

/// The length at which the clock counts a sequence anew: when it fills a leaf, or its topk.
std::int64_t SimulatedPool::uncounted_from(const Sequence& s) const {
  const std::int64_t leaf = config_.cost.leaf_tokens;
  const std::int64_t topk = config_.cost.attention.topk;
  const std::int64_t full = (s.length / leaf + 1) * leaf;
  return s.length < topk ? std::min(full, topk) : full;
}

/// Opens steps at the sequencer for the sequences that have none, and tells the clock of those
/// whose leaves changed.
void SimulatedPool::open() {
  items_.clear();
  for (Opening& opening : opening_) {
    const Sequence& s = sequencer_.ledger().table().at(opening.sequence.id);
    opening.sequence.opened = static_cast<std::int32_t>(
        std::min({std::int64_t{config_.commit_tokens}, uncounted_from(s) - s.length,
                  s.limit_tokens - s.length}));
    items_.push_back(next_item(s, opening.sequence.opened));
  }
  if (!items_.empty()) {
    sequencer_.steps().open(items_);
    sequencer_.steps().order_round(items_);
    (void)sequencer_.take_order();
  }
  for (const Opening& opening : opening_) {
    if (opening.uncounted) {
      const Sequence& s = sequencer_.ledger().table().at(opening.sequence.id);
      clock_.add(s, s.length + 1);
    }
    due(step_ + opening.sequence.opened - 1).push_back(opening.sequence);
  }
  opening_.clear();
}

/// Keys of a sequence in the step in progress.
std::int64_t SimulatedPool::rows(const Sequence& s) const {
  for (std::size_t i = 0; i < kRing; ++i) {
    const auto& due = due_[(static_cast<std::size_t>(step_) + i) % kRing];
    const auto found = std::ranges::find(due, s.id, &Running::id);
    if (found != due.end()) return s.length + found->opened - static_cast<std::int64_t>(i);
  }
  fail(ErrorCode::kInternal, "sequence {} is in no step", s.id);
}

double SimulatedPool::page_copy_bytes() const {
  return static_cast<double>(config_.cost.attention.row_bytes()) * kPageTokens;
}

void SimulatedPool::move(double now_s) {
  using Seconds = std::chrono::duration<double>;
  const CostModelConfig& cost = config_.cost;
  for (int layer = 0; layer < cost.layers; ++layer) {
    const double at_s = now_s + time_.step_us * 1e-6 * layer / cost.layers;
    move_schedule_.prepare(Time(std::chrono::duration_cast<Duration>(Seconds(at_s))));
    const Order order = sequencer_.take_order();
    double order_us = 0;
    for (const PageCopy& copy : order.copies) {
      const bool near = copy.from / cost.workers_per_node == copy.to / cost.workers_per_node;
      order_us += page_copy_bytes() * 1e-3 *
                  (near ? cost.costs.all_to_all_byte_ns : cost.costs.network_byte_ns);
    }
    copy_us_ += order_us;
    std::vector<Sequence> before;  // their moves end
    for (const RunningMove& move : sequencer_.moves().running()) {
      if (move.taken < std::ssize(move.from_pages) * cost.layers) continue;
      before.push_back(sequencer_.ledger().table().at(move.move.id));
    }
    sequencer_.order_ended(true);
    move_schedule_.order_ended(order_us);
    for (const Sequence& s : before) {
      const std::int64_t keys = rows(s);
      clock_.remove(s, keys);
      clock_.add(sequencer_.ledger().table().at(s.id), keys);
    }
  }
}

const RoundTime& SimulatedPool::begin_step(double now_s) {
  open();
  copy_us_ = 0;
  if (config_.sequencer.move_bytes_per_s > 0) move(now_s);
  joined_.swap(joining_);
  joining_.clear();
  time_ = clock_.time();
  in_step_ = true;
  return time_;
}

void SimulatedPool::end_step() {
  finished_.clear();
  for (const Running& sequence : due(step_)) {
    sequencer_.steps().commit(sequence.id, sequence.opened);
    const Sequence& s = sequencer_.ledger().table().at(sequence.id);
    const bool ends = s.length == s.limit_tokens;
    const bool passes =
        s.length % config_.cost.leaf_tokens == 0 || s.length == config_.cost.attention.topk;
    if (ends || passes) clock_.remove(s, s.length);
    if (ends) {
      finished_.push_back(sequence.tag);
      free_pages_ += pages_of(s.limit_tokens);
      --sequences_;
      sequencer_.sequences().free(sequence.id);
    } else {
      opening_.push_back({sequence, passes});
    }
  }
  due(step_).clear();
  clock_.tick();
  ++step_;
  in_step_ = false;
}

StepCheck SimulatedPool::check() const {
  SequenceTable table = sequencer_.ledger().table();
  std::vector<StepItem> items;
  items.reserve(sequences_);
  for (std::size_t i = 0; i < kRing; ++i) {
    // Bucket i is due at the end of the i-th step after the one in progress.
    for (const Running& sequence : due_[(static_cast<std::size_t>(step_) + i) % kRing]) {
      const auto decoded = sequence.opened - static_cast<std::int32_t>(i) - 1;
      if (decoded > 0) table.apply(CommitOp{sequence.id, decoded});
      items.push_back(next_item(table.at(sequence.id), 1));
    }
  }
  std::ranges::sort(items, {}, &StepItem::id);
  Routing routing;
  build_routing(table, items, config_.workers, routing);
  StepCheck check;
  check.clock = time_;
  check.plan = predict_step(config_.cost, routing, config_.workers, time_.exchange);
  RankPlan plan;
  for (int rank = 0; rank < config_.workers; ++rank) {
    PlanBuilder(config_.workers, rank, config_.cost.leaf_tokens)
        .build(routing, time_.exchange, plan);
    const LinkBytes bytes = received_bytes(config_.cost, plan, rank);
    check.plan_bytes.node += bytes.node * config_.cost.layers;
    check.plan_bytes.network += bytes.network * config_.cost.layers;
  }
  check.least_bytes = least_exchange_bytes(routing, config_.cost.attention) * config_.cost.layers;
  check.tokens = std::ssize(items);
  const auto sequences = static_cast<double>(items.size());
  check.mean_spread = static_cast<double>(routing.spread.size()) / sequences;
  check.mean_roots = static_cast<double>(routing.roots.size()) / sequences;
  std::vector<std::int64_t> inbound(static_cast<std::size_t>(config_.workers), 0);
  for (const ItemRoot& root : routing.roots) {
    const auto& item = routing.items[static_cast<std::size_t>(root.item)];
    if (root.worker != item.home) ++inbound[static_cast<std::size_t>(item.home)];
  }
  check.busiest_home_roots = static_cast<double>(std::ranges::max(inbound));
  return check;
}

}  // namespace tributary
