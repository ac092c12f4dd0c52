#include "core/sequencer/sequencer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"
#include "core/placement/page_cuts.h"

namespace tributary {
namespace {

void check_lengths(const AdmitRequest& request, std::int64_t tag) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
  if (request.prompt_tokens < 0 || request.prompt_tokens >= kMaxTokens ||
      request.max_new_tokens < 0 || request.max_new_tokens >= kMaxTokens ||
      request.prompt_tokens + request.max_new_tokens < 1) {
    fail(ErrorCode::kInvalidArgument,
         "request {}: {} prompt tokens and {} new ones, expected below 2^31 of each and at least "
         "1 in all",
         tag, request.prompt_tokens, request.max_new_tokens);
  }
}

/// What placement counts as present at admission: a leaf for the first token at least.
std::int64_t placed_tokens(const AdmitRequest& request) {
  return std::max<std::int64_t>(request.prompt_tokens, 1);
}

/// Up to its limit.
std::int64_t pages_of(const AdmitRequest& request) {
  return ceil_div(request.prompt_tokens + request.max_new_tokens, std::int64_t{kPageTokens});
}

}  // namespace

Sequencer::Sequencer(const SequencerConfig& config)
    : config_(config),
      placement_(config.placement),
      table_(config.placement.model.leaf_tokens),
      load_(placement_.empty_load(config.pages_per_worker)),
      page_waits_(config.pages_per_worker),
      moves_(config.layers) {
  if (config.pages_per_worker < 1) {
    fail(ErrorCode::kInvalidArgument, "pages per worker is {}, expected at least 1",
         config.pages_per_worker);
  }
  pools_.assign(static_cast<std::size_t>(config.placement.workers),
                PagePool(config.pages_per_worker));
  draining_.assign(pools_.size(), false);
}

void Sequencer::decide(TableOp op) {
  table_.apply(op);
  order_.ops.emplace_back(std::move(op));
}

std::int64_t Sequencer::leaf_rows(const Sequence& s, std::size_t leaf, std::int64_t length) const {
  const std::int64_t leaf_tokens = table_.leaf_tokens();
  return std::clamp<std::int64_t>(
      std::min(length, s.limit_tokens) - static_cast<std::int64_t>(leaf) * leaf_tokens, 0,
      leaf_tokens);
}

std::int32_t Sequencer::take_page(std::int32_t worker) {
  return pools_[static_cast<std::size_t>(worker)].allocate_reserved();
}

void Sequencer::sync_available(std::int32_t worker) {
  const bool gets_none = draining(worker);
  load_.set_available_pages(worker,
                            gets_none ? 0 : pools_[static_cast<std::size_t>(worker)].available());
}

/// Adds (sign 1) or removes (-1) a sequence's share of the loads; pages are separate.
void Sequencer::account(const Sequence& s, int sign) {
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

/// Where a new sequence fits, beside what moves under way will have made of the pool: a worker that
/// leaves are on their way to only looks idle. If need be into pages that moves hold: these are
/// cancelled then.
std::optional<Assignment> Sequencer::place(const AdmitRequest& request) {
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  const PageCut page_cut = page_waits_.may_cut(pages_of(request));
  const auto place_on = [&](const PoolLoad& load) {
    return placement_.place(placed_tokens(request), limit, request.spread, load, page_cut);
  };
  if (moves_.empty()) return place_on(load_);
  auto assignment = place_on(load_after_moves());
  if (assignment) return assignment;
  PoolLoad freed = load_;
  std::vector<SequenceId> moving;
  for (const RunningMove& move : moves_.moves()) {
    const std::int32_t to = move.move.to;
    if (draining(to)) continue;
    freed.set_available_pages(to, freed.workers()[static_cast<std::size_t>(to)].available_pages +
                                      std::ssize(move.to_pages));
    moving.push_back(move.move.id);
  }
  assignment = place_on(freed);
  if (!assignment) return assignment;
  for (const SequenceId id : moving) cancel_move(id);
  return assignment;
}

void Sequencer::check(const AdmitRequest& request, std::int64_t tag) const {
  check_lengths(request, tag);
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  if (!fits_empty_pool(limit, request.spread, config_.placement.workers, config_.pages_per_worker,
                       table_.leaf_tokens())) {
    fail(ErrorCode::kTooLarge,
         "request {}: {} tokens need {} pages with spread {}; the pool holds {} on each of {} "
         "workers",
         tag, limit, pages_of(request), spread_policy_name(request.spread),
         config_.pages_per_worker, config_.placement.workers);
  }
}

std::optional<SequenceId> Sequencer::admit(const AdmitRequest& request, const AdmitAs& as) {
  check_lengths(request, as.tag);
  const auto is_closed = [&] {
    return std::ranges::any_of(closed_, [&](const Closed& c) { return c.sequence.id == as.id; });
  };
  if (as.id != 0 && (table_.contains(as.id) || is_closed())) {
    fail(ErrorCode::kAlreadyExists, "request {}: sequence {} is already in the pool", as.tag,
         as.id);
  }
  if (as.id == 0 && counter_ == std::numeric_limits<std::uint32_t>::max()) {
    fail(ErrorCode::kFailedPrecondition, "request {}: incarnation {} has given all {} sequence ids",
         as.tag, config_.incarnation, counter_);
  }
  const auto assignment = place(request);
  if (!assignment) {
    check(request, as.tag);
    if (request.spread == SpreadPolicy::kAuto) page_waits_.refused(pages_of(request));
    return std::nullopt;
  }
  page_waits_.admitted(pages_of(request));

  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  Sequence s;
  s.id = as.id != 0 ? as.id : (static_cast<std::uint64_t>(config_.incarnation) << 32) | ++counter_;
  s.epoch = 1;
  s.home = assignment->home;
  s.tag = as.tag;
  s.prompt_tokens = request.prompt_tokens;
  s.limit_tokens = limit;
  s.length = request.prompt_tokens;
  s.leaves.resize(assignment->leaf_owner.size());
  std::int32_t previous_owner = -1;
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    Leaf& leaf = s.leaves[i];
    leaf.owner = assignment->leaf_owner[i];
    if (leaf.owner != previous_owner) ++placements_;
    previous_owner = leaf.owner;
    PagePool& pool = pools_[static_cast<std::size_t>(leaf.owner)];
    pool.reserve(static_cast<std::int32_t>(ceil_div(leaf_rows(s, i, limit), kPageTokens)));
    const std::int64_t pages = ceil_div(leaf_rows(s, i, s.length), kPageTokens);
    leaf.pages.reserve(static_cast<std::size_t>(pages));
    for (std::int64_t p = 0; p < pages; ++p) leaf.pages.push_back(take_page(leaf.owner));
    sync_available(leaf.owner);
  }
  account(s, 1);
  const SequenceId id = s.id;
  policies_.emplace(id, request.spread);
  if (request.prompt_tokens > 0) filling_.insert(id);
  ++turnover_;
  decide(AdmitOp{std::move(s)});
  return id;
}

void Sequencer::check_not_in_step(SequenceId id) const {
  if (open_.contains(id)) {
    fail(ErrorCode::kFailedPrecondition, "sequence {} is in an open step", id);
  }
}

void Sequencer::truncate(SequenceId id, std::int64_t length) {
  const Sequence& s = table_.at(id);
  check_not_in_step(id);
  if (length < 0 || length > s.length) {
    fail(ErrorCode::kInvalidArgument, "truncate of sequence {} to {} tokens: length is {}", id,
         length, s.length);
  }
  cancel_move(id);
  account(s, -1);
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const Leaf& leaf = s.leaves[i];
    const auto keep = static_cast<std::size_t>(ceil_div(leaf_rows(s, i, length), kPageTokens));
    PagePool& pool = pools_[static_cast<std::size_t>(leaf.owner)];
    for (std::size_t p = keep; p < leaf.pages.size(); ++p) {
      if (pool.release(leaf.pages[p])) pool.reserve(1);
    }
    sync_available(leaf.owner);
  }
  decide(TruncateOp{id, s.epoch + 1, length});
  account(s, 1);
}

/// Gives back all pages of a sequence, and those still promised to it.
void Sequencer::release_pages(const Sequence& s) {
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const Leaf& leaf = s.leaves[i];
    PagePool& pool = pools_[static_cast<std::size_t>(leaf.owner)];
    const std::int64_t promised = ceil_div(leaf_rows(s, i, s.limit_tokens), kPageTokens) -
                                  static_cast<std::int64_t>(leaf.pages.size());
    for (const std::int32_t page : leaf.pages) (void)pool.release(page);
    pool.unreserve(static_cast<std::int32_t>(promised));
    sync_available(leaf.owner);
  }
}

/// The sequence is no more; its pages are left to the caller.
void Sequencer::end(SequenceId id) {
  cancel_move(id);
  account(table_.at(id), -1);
  policies_.erase(id);
  filling_.erase(id);
  ++turnover_;
  decide(FreeOp{id});
}

void Sequencer::free(SequenceId id) {
  const Sequence& s = table_.at(id);
  check_not_in_step(id);
  release_pages(s);
  end(id);
}

void Sequencer::close(SequenceId id) {
  const Sequence& s = table_.at(id);
  check_not_in_step(id);
  closed_.push_back({round_ + 1, s});
  end(id);
}

void Sequencer::release_closed(std::uint64_t drained_round) {
  while (!closed_.empty() && closed_.front().round <= drained_round) {
    release_pages(closed_.front().sequence);
    closed_.pop_front();
  }
}

Order Sequencer::take_order() {
  for (const StepItem& item : order_.step) open_.at(item.id).taken = true;
  moves_.taken();
  order_.round = ++round_;
  return std::exchange(order_, Order{});
}

}  // namespace tributary
