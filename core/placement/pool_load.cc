#include "core/placement/pool_load.h"

#include <algorithm>

#include "core/base/ceil_div.h"
#include "core/base/error.h"

namespace tributary {
namespace {

std::int64_t checked(int value, int workers, int workers_per_node) {
  if (workers < 1 || workers_per_node < 1) {
    fail(ErrorCode::kInvalidArgument, "load: {} workers, {} of a node; expected at least 1 each",
         workers, workers_per_node);
  }
  return value;
}

}  // namespace

PoolLoad::PoolLoad(int workers, const CostModelConfig& model, std::int64_t pages_per_worker)
    : leaf_tokens_(checked(model.leaf_tokens, workers, model.workers_per_node)),
      topk_(model.attention.topk),
      pages_per_worker_(pages_per_worker),
      workers_(at(workers)),
      exchange_(workers, model.workers_per_node) {
  for (WorkerLoad& worker : workers_) worker.available_pages = pages_per_worker;
}

void PoolLoad::change_roots(const LeafRun& run, std::int64_t leaves, std::int32_t sign) {
  run_roots_.clear();
  append_subtree_roots(run.begin, run.end, leaves, run_roots_);
  WorkerLoad& worker = workers_[at(run.worker)];
  for (const TreeNode& node : run_roots_) {
    const std::int64_t held = std::min(node.end_leaf(), leaves) - node.first_leaf();
    roots_.push_back({node, run.worker});
    if (held == 1) continue;
    worker.merges += sign * (held - 1);
    worker.merge_heights.add(static_cast<std::size_t>(tree_height(held) - 1), sign);
  }
}

/// The merges that finish the tree of a sequence whose roots are `roots_`.
void PoolLoad::change_home(std::int32_t home, std::int64_t leaves, std::int32_t sign) {
  WorkerLoad& worker = workers_[at(home)];
  if (roots_.size() == 1) {
    if (roots_.front().worker == home) return;
    worker.home_merges += sign;  // a copy of the only root
    worker.home_levels.add(0, sign);
    return;
  }
  nodes_.clear();
  for (const OwnedRoot& root : roots_) nodes_.push_back({root.node, std::ssize(nodes_)});
  schedule_.clear();
  schedule_.add(nodes_, tree_height(leaves), 0, 1);
  const auto levels = schedule_.levels();
  for (std::size_t level = 0; level < levels.size(); ++level) {
    const auto merges = static_cast<std::int32_t>(levels[level].size());
    if (merges == 0) continue;
    worker.home_merges += static_cast<std::int64_t>(sign) * merges;
    worker.home_levels.add(level, sign);
  }
}

void PoolLoad::change(std::span<const LeafRun> runs, std::int32_t home, std::int64_t tokens,
                      std::int32_t sign) {
  sequences_ += sign;
  workers_[at(home)].homes += sign;
  if (tokens == 0) return;
  const std::int64_t leaves = ceil_div(tokens, leaf_tokens_);
  roots_.clear();
  for (const LeafRun& run : runs) {
    WorkerLoad& worker = workers_[at(run.worker)];
    worker.leaves += sign * (run.end - run.begin);
    const std::int64_t held = std::min(run.end * leaf_tokens_, tokens) - run.begin * leaf_tokens_;
    worker.tokens += sign * held;
    worker.rows += sign * AttendedLength{tokens, leaves}.rows_of(run.end - run.begin, held, topk_);
    change_roots(run, leaves, sign);
  }
  change_home(home, leaves, sign);
  // Roots by worker: a sequence has few of them.
  std::ranges::stable_sort(roots_, {}, &OwnedRoot::worker);
  bool spread = false;
  for (auto first = roots_.begin(); first != roots_.end();) {
    const std::int32_t worker = first->worker;
    const auto last =
        std::find_if(first, roots_.end(), [&](const auto& r) { return r.worker != worker; });
    if (worker != home) {
      const std::int64_t count = last - first;
      exchange_.add_pair(home, worker, sign, sign * count);
      spread = true;
    }
    first = last;
  }
  if (spread) exchange_.add_item(home, sign);
}

WorkerTimes PoolLoad::times(std::int32_t worker, Exchange exchange,
                            const RoundPrices& prices) const {
  const WorkerLoad& w = workers_[at(worker)];
  return prices.times({.tokens = w.homes,
                       .gathered = exchange == Exchange::kAllToAll ? exchange_.gathered(worker) : 0,
                       .attend = w.attend(),
                       .home_merges = w.home_merges,
                       .home_merge_levels = w.home_levels.used(),
                       .queries = exchange_.queries(worker, exchange, prices),
                       .states = exchange_.states(worker, exchange, prices)},
                      exchange);
}

RoundTimes PoolLoad::round(Exchange exchange, const RoundPrices& prices) const {
  RoundTimes round;
  for (std::int32_t w = 0; w < static_cast<std::int32_t>(workers_.size()); ++w) {
    round.see(times(w, exchange, prices));
  }
  return round;
}

double PoolLoad::step_us(const RoundPrices& prices) const {
  const auto us = [&](Exchange exchange) {
    return round(exchange, prices).step_us(prices.config(), sequences_);
  };
  const double narrow = us(Exchange::kAllToAll);
  return exchange_.travels() ? std::min(narrow, us(Exchange::kAllGather)) : narrow;
}

}  // namespace tributary
