// Builds the part of a plan that is equal on every worker: items, subtree roots, volumes, the
// exchange.
#include <algorithm>
#include <array>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/cache/leaves.h"
#include "core/plan/plan.h"

namespace tributary {
namespace {

constexpr std::array<std::pair<Exchange, std::string_view>, 3> kExchangeNames{{
    {Exchange::kAuto, "auto"},
    {Exchange::kAllGather, "all-gather"},
    {Exchange::kAllToAll, "all-to-all"},
}};

void check_item(const StepItem& step, const Sequence& sequence) {
  if (step.epoch != sequence.epoch) {
    fail(ErrorCode::kStaleEpoch, "sequence {}: epoch {} is over, it is at {}", step.id, step.epoch,
         sequence.epoch);
  }
  if (step.base_length != sequence.length) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: a step at {}, the sequence has {}", step.id,
         step.base_length, sequence.length);
  }
  if (step.tokens < 1 || step.tokens > kMaxStepTokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} new tokens, expected 1 .. {}", step.id,
         step.tokens, kMaxStepTokens);
  }
  if (sequence.length + step.tokens > sequence.limit_tokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} + {} tokens exceed its limit of {}", step.id,
         sequence.length, step.tokens, sequence.limit_tokens);
  }
}

/// Checks that leaf `leaf` lies on a worker of the pool, in as many pages as its `rows` need.
void check_leaf(const Sequence& sequence, std::int64_t leaf, std::int64_t rows, int workers) {
  const Leaf& l = sequence.leaves[static_cast<std::size_t>(leaf)];
  const auto known = [&](std::int32_t worker) { return worker >= 0 && worker < workers; };
  if (!known(l.owner) || !known(sequence.home)) {
    fail(ErrorCode::kInvalidArgument,
         "sequence {}: leaf {} is on worker {}, home is worker {}, the pool has {}", sequence.id,
         leaf, l.owner, sequence.home, workers);
  }
  if (std::cmp_less(l.pages.size(), ceil_div(rows, kPageTokens))) {
    fail(ErrorCode::kInvalidArgument, "leaf {} of sequence {}: {} pages for {} rows", leaf,
         sequence.id, l.pages.size(), rows);
  }
}

void add_item(const Sequence& sequence, std::int32_t tokens, int leaf_tokens, Routing& routing) {
  const auto index = static_cast<std::int32_t>(routing.items.size());
  Routing::Item item{.sequence = &sequence,
                     .tokens = tokens,
                     .home = sequence.home,
                     .rows = sequence.length + tokens,
                     .first_root = static_cast<std::int32_t>(routing.roots.size()),
                     .end_root = 0,
                     .first_worker = static_cast<std::int32_t>(routing.spread.size()),
                     .end_worker = 0};
  const std::int64_t leaves = ceil_div(item.rows, leaf_tokens);
  const auto workers = static_cast<int>(routing.worker_rows.size());
  for_each_leaf(0, item.rows, leaf_tokens, [&](const LeafPart& part) {
    check_leaf(sequence, part.leaf, part.rows(), workers);
  });
  std::vector<TreeNode> nodes;
  const auto add_run = [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
    nodes.clear();
    append_subtree_roots(begin, end, leaves, nodes);
    for (const TreeNode& node : nodes) routing.roots.push_back({index, owner, node});
    routing.spread.push_back(owner);
    routing.worker_rows[static_cast<std::size_t>(owner)] +=
        (std::min(end * leaf_tokens, item.rows) - begin * leaf_tokens) * tokens;
  };
  for_each_owner_run(sequence, leaves, add_run);
  const auto first = routing.spread.begin() + item.first_worker;
  std::sort(first, routing.spread.end());
  routing.spread.erase(std::unique(first, routing.spread.end()), routing.spread.end());
  item.end_root = static_cast<std::int32_t>(routing.roots.size());
  item.end_worker = static_cast<std::int32_t>(routing.spread.size());
  routing.items.push_back(item);
}

}  // namespace

Exchange parse_exchange(std::string_view name) {
  for (const auto& [exchange, text] : kExchangeNames) {
    if (text == name) return exchange;
  }
  fail(ErrorCode::kInvalidArgument, "exchange is '{}', expected auto, all-gather or all-to-all",
       name);
}

std::string_view exchange_name(Exchange exchange) noexcept {
  for (const auto& [value, text] : kExchangeNames) {
    if (value == exchange) return text;
  }
  return "unknown";
}

void build_routing(const SequenceTable& table, std::span<const StepItem> batch, int workers,
                   Routing& routing) {
  routing.items.clear();
  routing.roots.clear();
  routing.spread.clear();
  routing.worker_rows.assign(static_cast<std::size_t>(workers), 0);
  for (const StepItem& step : batch) {
    const Sequence& sequence = table.at(step.id);
    check_item(step, sequence);
    add_item(sequence, step.tokens, table.leaf_tokens(), routing);
  }
}

ExchangeVolume exchange_volume(const Routing& routing, int workers, Exchange exchange) {
  // All-gather: every record that a worker contributes goes to all others.
  const bool gather = exchange == Exchange::kAllGather;
  const std::int64_t copies = gather ? workers - 1 : 1;
  ExchangeVolume volume;
  for (const auto& item : routing.items) {
    if (!routing.exchanged(item)) continue;
    const auto spread = routing.spread_of(item);
    const auto receivers = gather ? 1 : std::ranges::count_if(spread, [&](std::int32_t worker) {
      return worker != item.home;
    });
    volume.token_records += copies * receivers * item.tokens;
  }
  for (const auto& root : routing.roots) {
    const auto& item = routing.items[static_cast<std::size_t>(root.item)];
    if (root.worker != item.home) volume.state_records += copies * item.tokens;
  }
  return volume;
}

}  // namespace tributary
