// Builds one worker's part of a plan.
#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/index.h"
#include "core/cache/leaves.h"
#include "core/plan/plan.h"

namespace tributary {
namespace {

/// Exclusive prefix sum: where each rank's block begins.
std::vector<std::int64_t> block_begins(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), std::int64_t{0});
  return begins;
}

std::int64_t total(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace

PlanBuilder::PlanBuilder(int workers, int rank, int leaf_tokens)
    : workers_(workers), rank_(rank), leaf_tokens_(leaf_tokens) {}

void PlanBuilder::build(const Routing& routing, Exchange exchange, RankPlan& plan) {
  if (exchange == Exchange::kAuto) {
    fail(ErrorCode::kInvalidArgument, "a plan needs a chosen exchange, not auto");
  }
  plan.exchange = exchange;
  route_tokens(routing, plan);
  route_states(routing, plan);
  plan_appends(routing, plan);
  plan_leaves(routing, plan);
  plan_home_merges(routing, plan);
}

void PlanBuilder::route_tokens(const Routing& routing, RankPlan& plan) {
  const auto ranks = at(workers_);
  const bool gather = plan.exchange == Exchange::kAllGather;
  plan.homed.clear();
  plan.token_send_index.clear();
  plan.token_send_counts.assign(ranks, 0);
  plan.token_recv_counts.assign(ranks, 0);
  plan.tokens_travel = false;
  plan.local_tokens = 0;
  token_location_.assign(routing.items.size(), -1);

  // Exchanged sequences come first, so that an all-gather sends a prefix of the local records.
  for (const bool exchanged : {true, false}) {
    for (std::size_t i = 0; i < routing.items.size(); ++i) {
      const auto& item = routing.items[i];
      if (item.home != rank_ || routing.exchanged(item) != exchanged) continue;
      token_location_[i] = plan.local_tokens;
      plan.local_tokens += item.tokens;
    }
  }
  for (std::size_t i = 0; i < routing.items.size(); ++i) {
    const auto& item = routing.items[i];
    const Sequence& s = *item.sequence;
    if (item.home == rank_) {
      plan.homed.push_back({static_cast<std::int32_t>(i), s.id, s.tag, s.length, item.tokens,
                            token_location_[i], /*state=*/0});
    }
    if (!routing.exchanged(item)) continue;
    plan.tokens_travel = true;
    if (gather) {
      plan.token_recv_counts[at(item.home)] += item.tokens;
      continue;
    }
    for (const std::int32_t worker : routing.spread_of(item)) {
      if (worker == item.home) continue;
      if (item.home == rank_) plan.token_send_counts[at(worker)] += item.tokens;
      if (worker == rank_) plan.token_recv_counts[at(item.home)] += item.tokens;
    }
  }
  if (gather) std::fill_n(plan.token_send_counts.begin(), ranks, plan.token_recv_counts[at(rank_)]);
  plan.received_tokens = total(plan.token_recv_counts);

  // The places of the records of others' sequences, and our outgoing records, in item order.
  auto landing = block_begins(plan.token_recv_counts);
  std::vector<std::vector<std::int64_t>> outgoing(gather ? 0 : ranks);
  for (std::size_t i = 0; i < routing.items.size(); ++i) {
    const auto& item = routing.items[i];
    if (!routing.exchanged(item)) continue;
    const auto spread = routing.spread_of(item);
    if (item.home != rank_) {
      const bool mine = std::binary_search(spread.begin(), spread.end(), rank_);
      if (!gather && !mine) continue;
      if (mine) token_location_[i] = plan.local_tokens + landing[at(item.home)];
      landing[at(item.home)] += item.tokens;
    } else if (!gather) {
      for (const std::int32_t worker : spread) {
        if (worker == rank_) continue;
        for (std::int32_t t = 0; t < item.tokens; ++t) {
          outgoing[at(worker)].push_back(token_location_[i] + t);
        }
      }
    }
  }
  for (const auto& records : outgoing) {
    plan.token_send_index.insert(plan.token_send_index.end(), records.begin(), records.end());
  }
}

void PlanBuilder::route_states(const Routing& routing, RankPlan& plan) {
  const auto ranks = at(workers_);
  const bool gather = plan.exchange == Exchange::kAllGather;
  plan.state_send_counts.assign(ranks, 0);
  plan.state_recv_counts.assign(ranks, 0);
  plan.states_travel = false;
  for (const auto& root : routing.roots) {
    const auto& item = routing.items[at(root.item)];
    if (root.worker == item.home) continue;
    plan.states_travel = true;
    if (gather) {
      plan.state_recv_counts[at(root.worker)] += item.tokens;
    } else {
      if (root.worker == rank_) plan.state_send_counts[at(item.home)] += item.tokens;
      if (item.home == rank_) plan.state_recv_counts[at(root.worker)] += item.tokens;
    }
  }
  if (gather) std::fill_n(plan.state_send_counts.begin(), ranks, plan.state_recv_counts[at(rank_)]);
  plan.sent_states = gather ? plan.state_recv_counts[at(rank_)] : total(plan.state_send_counts);
  plan.received_states = total(plan.state_recv_counts);

  // Local records: one per leaf, except where a leaf's state is a root that may be sent at once.
  plan.local_states = 0;
  for (const auto& root : routing.roots) {
    if (root.worker != rank_) continue;
    const auto& item = routing.items[at(root.item)];
    const std::int64_t leaves = ceil_div(item.rows, leaf_tokens_);
    const std::int64_t held = std::min(root.node.end_leaf(), leaves) - root.node.first_leaf();
    const bool merged_here = item.home == rank_ && item.end_root - item.first_root > 1;
    if (held > 1 || merged_here) plan.local_states += held * item.tokens;
  }
  plan.out_states = 0;
  for (auto& homed : plan.homed) {
    homed.state = plan.out_begin() + plan.out_states;
    plan.out_states += homed.tokens;
  }

  // The place of every root's state on this rank: final, to be sent, or received.
  auto sending = block_begins(plan.state_send_counts);
  auto landing = block_begins(plan.state_recv_counts);
  std::int64_t gathered = 0;
  root_location_.assign(routing.roots.size(), -1);
  for (const auto& homed : plan.homed) {
    const auto& item = routing.items[at(homed.item)];
    const auto& root = routing.roots[at(item.first_root)];
    if (item.end_root - item.first_root == 1 && root.worker == rank_) {
      root_location_[at(item.first_root)] = homed.state;
    }
  }
  for (std::size_t r = 0; r < routing.roots.size(); ++r) {
    const auto& root = routing.roots[r];
    const auto& item = routing.items[at(root.item)];
    if (root.worker == item.home) continue;
    if (root.worker == rank_) {
      std::int64_t& next = gather ? gathered : sending[at(item.home)];
      root_location_[r] = plan.send_begin() + next;
      next += item.tokens;
    } else if (gather || item.home == rank_) {
      if (item.home == rank_) {
        root_location_[r] = plan.recv_begin() + landing[at(root.worker)];
      }
      landing[at(root.worker)] += item.tokens;
    }
  }
}

void PlanBuilder::plan_appends(const Routing& routing, RankPlan& plan) const {
  plan.appends.clear();
  for (std::size_t i = 0; i < routing.items.size(); ++i) {
    const auto& item = routing.items[i];
    const std::int64_t length = item.sequence->length;
    const auto append = [&](const Leaf& leaf, const LeafPart& part) {
      if (leaf.owner != rank_) return;
      for (std::int64_t p = part.begin; p < part.end; ++p) {
        const std::int64_t row = part.first_row + p - part.begin;
        plan.appends.push_back({static_cast<std::int32_t>(i), leaf.pages[at(row / kPageTokens)],
                                static_cast<std::int32_t>(row % kPageTokens),
                                token_location_[i] + p - length});
      }
    };
    for_each_leaf(*item.sequence, length, length + item.tokens, leaf_tokens_, append);
  }
}

void PlanBuilder::plan_leaves(const Routing& routing, RankPlan& plan) {
  plan.tasks.clear();
  plan.block_table.clear();
  plan.local_merges.clear();
  std::int64_t next_local = 0;
  for (std::size_t r = 0; r < routing.roots.size(); ++r) {
    const auto& root = routing.roots[r];
    if (root.worker != rank_) continue;
    const auto& item = routing.items[at(root.item)];
    const std::int64_t end = std::min(root.node.end_leaf(), ceil_div(item.rows, leaf_tokens_));
    const bool direct = root_location_[r] >= 0 && end - root.node.first_leaf() == 1;
    nodes_.clear();
    const auto add = [&](const Leaf& leaf, const LeafPart& part) {
      const std::int64_t state = direct ? root_location_[r] : next_local;
      if (!direct) next_local += item.tokens;
      LeafTask task{.item = root.item,
                    .tokens = item.tokens,
                    .rows = static_cast<std::int32_t>(part.rows()),
                    .first_page = static_cast<std::int32_t>(plan.block_table.size()),
                    .leaf_begin = part.begin,
                    .query_position = item.sequence->length,
                    .query = token_location_[at(root.item)],
                    .state = state};
      plan.tasks.push_back(task);
      plan.block_table.insert(plan.block_table.end(), leaf.pages.begin(),
                              leaf.pages.begin() + ceil_div(task.rows, kPageTokens));
      nodes_.push_back({{0, static_cast<std::int32_t>(part.leaf)}, state});
    };
    for_each_leaf(*item.sequence, root.node.first_leaf() * leaf_tokens_,
                  std::min(end * leaf_tokens_, item.rows), leaf_tokens_, add);
    // A root that stays here ends in its first leaf's record.
    if (root_location_[r] < 0) root_location_[r] = nodes_.front().state;
    plan.local_merges.add(nodes_, root.node.level, root_location_[r], item.tokens);
  }
}

void PlanBuilder::plan_home_merges(const Routing& routing, RankPlan& plan) {
  plan.home_merges.clear();
  for (const HomedItem& homed : plan.homed) {
    const auto& item = routing.items[at(homed.item)];
    nodes_.clear();
    for (std::int32_t r = item.first_root; r < item.end_root; ++r) {
      nodes_.push_back({routing.roots[at(r)].node, root_location_[at(r)]});
    }
    plan.home_merges.add(nodes_, tree_height(ceil_div(item.rows, leaf_tokens_)), homed.state,
                         homed.tokens);
  }
}

}  // namespace tributary
