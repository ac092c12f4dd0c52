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
      blocks_(placement.workers),
      order_(order) {
  if (pages_per_worker < 1) {
    fail(ErrorCode::kInvalidArgument, "pages per worker is {}, expected at least 1",
         pages_per_worker);
  }
  pools_.assign(static_cast<std::size_t>(placement.workers), PagePool(pages_per_worker));
  draining_.assign(pools_.size(), false);
}

std::int64_t PoolLedger::leaf_pages(const Sequence& s, std::size_t leaf,
                                    std::int64_t length) const {
  const std::int64_t leaf_tokens = table_.leaf_tokens();
  const std::int64_t rows = std::clamp<std::int64_t>(
      std::min(length, s.limit_tokens) - static_cast<std::int64_t>(leaf) * leaf_tokens, 0,
      leaf_tokens);
  return ceil_div(rows, std::int64_t{kPageTokens});
}

void PoolLedger::reserve(std::int32_t worker, std::int64_t pages) {
  pools_[static_cast<std::size_t>(worker)].reserve(static_cast<std::int32_t>(pages));
  sync_available(worker);
}

void PoolLedger::unreserve(std::int32_t worker, std::int64_t pages) {
  pools_[static_cast<std::size_t>(worker)].unreserve(static_cast<std::int32_t>(pages));
  sync_available(worker);
}

/// Available pages stay as many: reserved ones do not count.
std::vector<std::int32_t> PoolLedger::take_pages(std::int32_t worker, std::int64_t count) {
  std::vector<std::int32_t> pages;
  pages.reserve(static_cast<std::size_t>(count));
  PagePool& pool = pools_[static_cast<std::size_t>(worker)];
  while (std::ssize(pages) < count) {
    while (pool.free() == 0 && blocks_.longest_idle(worker) != nullptr) {
      forget_block(*blocks_.longest_idle(worker));
    }
    pages.push_back(pool.allocate_reserved());
  }
  return pages;
}

std::int64_t PoolLedger::release_pages(std::int32_t worker, std::span<const std::int32_t> pages) {
  PagePool& pool = pools_[static_cast<std::size_t>(worker)];
  std::int64_t freed = 0;
  for (const std::int32_t page : pages) freed += pool.release(page) ? 1 : 0;
  sync_available(worker);
  return freed;
}

Block* PoolLedger::name_block(std::string name, std::int32_t worker,
                              std::vector<std::int32_t> pages) {
  PagePool& pool = pools_[static_cast<std::size_t>(worker)];
  if (blocks_.find(name, worker) != nullptr) return nullptr;
  if (std::ranges::any_of(pages, [&](std::int32_t page) { return pool.kept(page); })) {
    return nullptr;
  }
  for (const std::int32_t page : pages) pool.keep(page);
  return &blocks_.add(std::move(name), worker, std::move(pages));
}

void PoolLedger::share_block(Block& block) {
  PagePool& pool = pools_[static_cast<std::size_t>(block.worker)];
  const auto idle = std::ranges::count_if(
      block.pages, [&](std::int32_t page) { return pool.reference_count(page) == 0; });
  if (pool.available() < idle) {
    fail(ErrorCode::kPoolFull, "worker {}: {} idle pages of a block are promised", block.worker,
         idle);
  }
  for (const std::int32_t page : block.pages) pool.retain(page);
  blocks_.hold(block);
  sync_available(block.worker);
}

void PoolLedger::leave_block(Block& block, bool keep) {
  blocks_.release(block);
  if (block.users == 0 && (!keep || draining(block.worker))) forget_block(block);
}

/// The name of an idle block is gone, and pages that nobody uses are free.
void PoolLedger::forget_block(Block& block) {
  PagePool& pool = pools_[static_cast<std::size_t>(block.worker)];
  for (const std::int32_t page : block.pages) pool.forget(page);
  blocks_.erase(block);
}

void PoolLedger::sync_available(std::int32_t worker) {
  const bool gets_none = draining(worker);
  load_.set_available_pages(worker,
                            gets_none ? 0 : pools_[static_cast<std::size_t>(worker)].available());
}

void PoolLedger::begin(Sequence s, SpreadPolicy spread) {
  running_.emplace(s.id, Running{.spread = spread, .arriving = s.prompt_tokens > s.present_tokens});
  ++turnover_;
  decide(AdmitOp{std::move(s)});
}

void PoolLedger::prompt_arrived(SequenceId id) {
  const auto found = running_.find(id);
  if (found == running_.end() || !found->second.arriving) return;
  found->second.arriving = false;
  ++turnover_;
}

void PoolLedger::end(SequenceId id) {
  running_.erase(id);
  ++turnover_;
  decide(FreeOp{id});
}

void PoolLedger::set_draining(std::int32_t worker, bool drain) {
  draining_[static_cast<std::size_t>(worker)] = drain;
  while (drain && blocks_.longest_idle(worker) != nullptr) {
    forget_block(*blocks_.longest_idle(worker));
  }
  sync_available(worker);
  ++turnover_;
}

/// Adds (sign 1) or removes (-1) a sequence's share of the loads; pages are separate.
void PoolLedger::account(const Sequence& s, int sign) {
  runs_.clear();
  for_each_owner_run(s, ceil_div(s.length, table_.leaf_tokens()),
                     [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
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
    const bool opens = s.leaves[static_cast<std::size_t>(extend->leaf)].pages.empty();
    if (opens && extend->leaf > 0) ++placements_;
  }
}

bool PoolLedger::has_full_leaf(SequenceId id) const {
  return table_.contains(id) && table_.at(id).length >= table_.leaf_tokens();
}

void PoolLedger::decide(TableOp op) {
  count_placements(op);
  const SequenceId id = id_of(op);
  const auto* commit = std::get_if<CommitOp>(&op);
  bool owners_change = !std::holds_alternative<ExtendOp>(op);  // whose pages hold no rows yet
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
  if (owners_change && table_.contains(id)) account(table_.at(id), -1);
  const bool had_full_leaf = has_full_leaf(id);
  table_.apply(op);
  if (const bool has = has_full_leaf(id); has && !had_full_leaf) {
    with_full_leaves_.insert(id);
  } else if (had_full_leaf && !has) {
    with_full_leaves_.erase(id);
  }
  if (owners_change && table_.contains(id)) account(table_.at(id), 1);
  order_.ops.emplace_back(std::move(op));
}

}  // namespace tributary
