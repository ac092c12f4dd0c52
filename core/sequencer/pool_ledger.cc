#include "core/sequencer/pool_ledger.h"

#include <algorithm>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"

namespace tributary {
namespace {

SequenceId id_of(const TableOp& op) {
  return std::visit(
      [](const auto& one) {
        if constexpr (requires { one.sequence; }) {
          return one.sequence.id;
        } else {
          return one.id;
        }
      },
      op);
}

}  // namespace

PoolLedger::PoolLedger(const PlacementConfig& placement, double max_step_us,
                       std::int32_t pages_per_worker, Order& order)
    : placement_(placement, max_step_us),
      topk_(placement.model.attention.topk),
      table_(placement.model.leaf_tokens),
      load_(placement_.empty_load(pages_per_worker)),
      pages_(placement.workers, pages_per_worker, load_),
      order_(order) {}

std::int64_t PoolLedger::leaf_pages(const Sequence& s, std::size_t leaf,
                                    std::int64_t length) const {
  const std::int64_t leaf_tokens = table_.leaf_tokens();
  const std::int64_t rows = std::clamp<std::int64_t>(
      std::min(length, s.limit_tokens) - static_cast<std::int64_t>(leaf) * leaf_tokens, 0,
      leaf_tokens);
  return ceil_div(rows, std::int64_t{kPageTokens});
}

void PoolLedger::begin(Sequence s, SpreadPolicy spread) {
  running_.emplace(s.id, Running{.spread = spread, .arriving = s.prompt_tokens > s.present_tokens});
  ++turnover_;
  decide(AdmitOp{std::move(s)});
}

void PoolLedger::prompt_arrived(SequenceId id) {
  const auto found = running_.find(id);
  if (found == running_.end() || !found->second.arriving) return;
  const auto has_no_pages = [&](std::int32_t leaf) {
    return table_.at(id).leaves[static_cast<std::size_t>(leaf)].pages.empty();
  };
  if (std::ranges::any_of(found->second.lost, has_no_pages)) return;
  found->second.arriving = false;
  found->second.lost.clear();
  ++turnover_;
}

void PoolLedger::end(SequenceId id) {
  running_.erase(id);
  ++turnover_;
  decide(FreeOp{id});
}

void PoolLedger::set_draining(std::int32_t worker, bool drain) {
  pages_.set_draining(worker, drain);
  ++turnover_;
}

void PoolLedger::set_lost(std::int32_t worker, bool lost) {
  pages_.set_lost(worker, lost);
  ++turnover_;
}

/// Adds (sign 1) or removes (-1) a sequence's share of the loads; pages are separate. One with rows
/// that nobody has room for is no load.
void PoolLedger::account(const Sequence& s, int sign) {
  const std::int64_t leaves = ceil_div(s.length, table_.leaf_tokens());
  const auto with_rows = std::span(s.leaves).first(static_cast<std::size_t>(leaves));
  if (std::ranges::count(with_rows, kNoWorker, &Leaf::owner) > 0) return;
  runs_.clear();
  for_each_owner_run(s, leaves, [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
    runs_.push_back({owner, begin, end});
  });
  if (sign > 0) {
    load_.add(runs_, s.home, s.length);
  } else {
    load_.remove(runs_, s.home, s.length);
  }
}

void PoolLedger::count_placements(const TableOp& op) {
  if (const auto* admit = std::get_if<AdmitOp>(&op)) {
    std::int32_t previous_owner = -1;
    for (const Leaf& leaf : admit->sequence.leaves) {
      if (leaf.owner != previous_owner) ++placements_;
      previous_owner = leaf.owner;
    }
  } else if (const auto* extend = std::get_if<ExtendOp>(&op)) {
    const Sequence& s = table_.at(extend->id);
    const bool opens =
        s.leaves[static_cast<std::size_t>(extend->leaf)].pages.empty() && !extend->pages.empty();
    if (opens && extend->leaf > 0) ++placements_;
  }
}

bool PoolLedger::has_full_leaf(SequenceId id) const {
  return table_.contains(id) && table_.at(id).length >= table_.leaf_tokens();
}

/// Before the operation: which leaves have rows that are to come again.
void PoolLedger::note_loss(const LoseOp& op) {
  Running& sequence = running_.at(op.id);
  for (const std::int32_t leaf : op.leaves) {
    if (std::int64_t{leaf} * table_.leaf_tokens() >= table_.at(op.id).length) continue;
    sequence.arriving = true;
    const auto place = std::ranges::lower_bound(sequence.lost, leaf);
    if (place == sequence.lost.end() || *place != leaf) sequence.lost.insert(place, leaf);
  }
  ++turnover_;
}

/// After an operation that may have changed it.
void PoolLedger::note_waiting(SequenceId id) {
  const bool waits =
      table_.contains(id) && std::ranges::count(table_.at(id).leaves, kNoWorker, &Leaf::owner) > 0;
  if (waits) {
    waiting_.insert(id);
  } else {
    waiting_.erase(id);
  }
}

void PoolLedger::decide(TableOp op) {
  count_placements(op);
  const SequenceId id = id_of(op);
  const auto* commit = std::get_if<CommitOp>(&op);
  // The pages of a leaf that grows hold no rows yet.
  bool owners_change = !std::holds_alternative<ExtendOp>(op) || table_.gives_rows_back(op);
  if (commit != nullptr) {
    // Most rows join the newest leaf, which costs less than a walk over all leaves.
    const Sequence& s = table_.at(id);
    const int leaf_tokens = table_.leaf_tokens();
    const std::int64_t length = s.length + commit->accepted;
    const bool all_attended = topk_ == 0 || length <= topk_;
    owners_change = ceil_div(length, leaf_tokens) != ceil_div(s.length, leaf_tokens) ||
                    (!all_attended && s.length <= topk_);
    const auto newest = static_cast<std::size_t>(s.length / leaf_tokens);
    if (!owners_change) {
      load_.grow(s.leaves[newest].owner, commit->accepted, all_attended ? commit->accepted : 0);
    }
  }
  const auto* lose = std::get_if<LoseOp>(&op);
  if (lose != nullptr) note_loss(*lose);
  if (owners_change && table_.contains(id)) account(table_.at(id), -1);
  const bool had_full_leaf = has_full_leaf(id);
  table_.apply(op);
  if (const bool has = has_full_leaf(id); has && !had_full_leaf) {
    with_full_leaves_.insert(id);
  } else if (had_full_leaf && !has) {
    with_full_leaves_.erase(id);
  }
  if (owners_change && table_.contains(id)) account(table_.at(id), 1);
  if (lose != nullptr || waiting_.contains(id)) note_waiting(id);
  order_.ops.emplace_back(std::move(op));
}

}  // namespace tributary
