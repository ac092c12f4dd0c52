#include "core/pool/sequencer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/plan/merge_tree.h"

namespace tributary {
namespace {

/// Calls visit(owner, tokens) for every leaf of the first `length` rows.
template <typename Visit>
void for_each_leaf(const Sequence& s, std::int64_t length, int leaf_tokens, Visit visit) {
  for (std::int64_t begin = 0; begin < length; begin += leaf_tokens) {
    const Leaf& leaf = s.leaves[static_cast<std::size_t>(begin / leaf_tokens)];
    visit(leaf.owner, std::min<std::int64_t>(leaf_tokens, length - begin));
  }
}

/// Subtree roots that travel to the sequence's home.
std::int64_t inbound_roots(const Sequence& s, int leaf_tokens) {
  const std::int64_t leaves = ceil_div(s.length, leaf_tokens);
  std::vector<TreeNode> roots;
  for (std::int64_t begin = 0; begin < leaves;) {
    const std::int32_t owner = s.leaves[static_cast<std::size_t>(begin)].owner;
    std::int64_t end = begin + 1;
    while (end < leaves && s.leaves[static_cast<std::size_t>(end)].owner == owner) ++end;
    if (owner != s.home) append_subtree_roots(begin, end, leaves, roots);
    begin = end;
  }
  return static_cast<std::int64_t>(roots.size());
}

void check_lengths(const AdmitRequest& request) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
  if (request.prompt_tokens < 0 || request.prompt_tokens >= kMaxTokens ||
      request.max_new_tokens < 0 || request.max_new_tokens >= kMaxTokens ||
      request.prompt_tokens + request.max_new_tokens < 1) {
    fail(ErrorCode::kInvalidArgument,
         "request {}: {} prompt tokens and {} new ones, expected below 2^31 of each and at least "
         "1 in all",
         request.tag, request.prompt_tokens, request.max_new_tokens);
  }
}

/// What placement counts as present at admission: a leaf for the first token at least.
std::int64_t placed_tokens(const AdmitRequest& request) {
  return std::max<std::int64_t>(request.prompt_tokens, 1);
}

}  // namespace

Sequencer::Sequencer(const SequencerConfig& config)
    : config_(config), placement_(config.placement), table_(config.placement.leaf_tokens) {
  if (config.pages_per_worker < 1) {
    fail(ErrorCode::kInvalidArgument, "pages per worker is {}, expected at least 1",
         config.pages_per_worker);
  }
  const auto workers = static_cast<std::size_t>(config.placement.workers);
  pools_.assign(workers, PagePool(config.pages_per_worker));
  loads_.assign(
      workers,
      WorkerLoad{
          .tokens = 0, .available_pages = config.pages_per_worker, .homes = 0, .inbound_roots = 0});
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
  const auto w = static_cast<std::size_t>(worker);
  loads_[w].available_pages = pools_[w].available();
}

/// Adds (sign 1) or removes (-1) a sequence's share of the loads; pages are separate.
void Sequencer::account(const Sequence& s, int sign) {
  for_each_leaf(s, s.length, table_.leaf_tokens(), [&](std::int32_t owner, std::int64_t tokens) {
    loads_[static_cast<std::size_t>(owner)].tokens += sign * tokens;
  });
  WorkerLoad& home = loads_[static_cast<std::size_t>(s.home)];
  home.homes += sign;
  home.inbound_roots += sign * inbound_roots(s, table_.leaf_tokens());
}

void Sequencer::check(const AdmitRequest& request) const {
  check_lengths(request);
  std::vector<WorkerLoad> empty(loads_.size());
  for (auto& load : empty) load.available_pages = config_.pages_per_worker;
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  if (!placement_.place(placed_tokens(request), limit, request.spread, empty)) {
    fail(ErrorCode::kTooLarge,
         "request {}: {} tokens need {} pages with spread {}; the pool holds {} on each of {} "
         "workers",
         request.tag, limit, ceil_div(limit, kPageTokens), spread_policy_name(request.spread),
         config_.pages_per_worker, loads_.size());
  }
}

std::optional<SequenceId> Sequencer::admit(const AdmitRequest& request) {
  check_lengths(request);
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  const auto assignment = placement_.place(placed_tokens(request), limit, request.spread, loads_);
  if (!assignment) {
    check(request);
    return std::nullopt;
  }

  if (counter_ == std::numeric_limits<std::uint32_t>::max()) {
    fail(ErrorCode::kFailedPrecondition, "request {}: incarnation {} has given all {} sequence ids",
         request.tag, config_.incarnation, counter_);
  }

  Sequence s;
  s.id = (static_cast<std::uint64_t>(config_.incarnation) << 32) | ++counter_;
  s.epoch = 1;
  s.home = assignment->home;
  s.tag = request.tag;
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
  decide(AdmitOp{std::move(s)});
  if (request.prompt_tokens > 0) order_.ops.emplace_back(FillOp{id, 0, request.prompt_tokens});
  return id;
}

/// Gives the sequence pages for its first `length` rows.
void Sequencer::grow(const Sequence& s, std::int64_t length) {
  const std::int64_t leaf_tokens = table_.leaf_tokens();
  for (std::int64_t l = s.length / leaf_tokens; l * leaf_tokens < length; ++l) {
    const auto i = static_cast<std::size_t>(l);
    const Leaf& leaf = s.leaves[i];
    const auto have = static_cast<std::int64_t>(leaf.pages.size());
    const std::int64_t want = ceil_div(leaf_rows(s, i, length), kPageTokens);
    if (want <= have) continue;
    std::int32_t owner = leaf.owner;
    if (have == 0 && l > 0) {
      std::vector<std::int64_t> spread(loads_.size(), 0);
      for_each_leaf(s, s.length, table_.leaf_tokens(), [&](std::int32_t w, std::int64_t tokens) {
        spread[static_cast<std::size_t>(w)] += tokens;
      });
      const auto pages = ceil_div(leaf_rows(s, i, s.limit_tokens), kPageTokens);
      owner = placement_.place_leaf(leaf.owner, pages, s.home, spread, policies_.at(s.id), loads_);
      ++placements_;
      if (owner != leaf.owner) {
        pools_[static_cast<std::size_t>(owner)].reserve(static_cast<std::int32_t>(pages));
        pools_[static_cast<std::size_t>(leaf.owner)].unreserve(static_cast<std::int32_t>(pages));
        sync_available(leaf.owner);
      }
    }
    ExtendOp op{s.id, static_cast<std::int32_t>(l), owner, {}};
    for (std::int64_t p = have; p < want; ++p) op.pages.push_back(take_page(owner));
    sync_available(owner);
    decide(std::move(op));
  }
}

void Sequencer::begin_step(std::span<const StepRequest> requests) {
  if (!open_step_.empty()) {
    fail(ErrorCode::kFailedPrecondition, "a step of {} sequences is open", open_step_.size());
  }
  std::unordered_set<SequenceId> ids;
  for (const StepRequest& request : requests) {
    const Sequence& s = table_.at(request.id);
    if (request.tokens < 1 || request.tokens > kMaxStepTokens) {
      fail(ErrorCode::kInvalidArgument, "sequence {:#x}: {} new tokens, expected 1 .. {}", s.id,
           request.tokens, kMaxStepTokens);
    }
    if (s.length + request.tokens > s.limit_tokens) {
      fail(ErrorCode::kInvalidArgument, "sequence {:#x}: {} + {} tokens exceed its limit of {}",
           s.id, s.length, request.tokens, s.limit_tokens);
    }
    if (!ids.insert(s.id).second) {
      fail(ErrorCode::kInvalidArgument, "sequence {:#x} is in the step twice", s.id);
    }
  }
  in_step_ = std::move(ids);
  for (const StepRequest& request : requests) {
    const Sequence& s = table_.at(request.id);
    grow(s, s.length + request.tokens);
    open_step_.push_back({s.id, s.epoch, request.tokens});
  }
  order_.step = open_step_;
}

void Sequencer::commit_step(std::span<const std::int32_t> accepted) {
  if (!order_.step.empty()) {
    fail(ErrorCode::kFailedPrecondition, "commit of a step of {} sequences that was not ordered",
         order_.step.size());
  }
  if (accepted.size() != open_step_.size()) {
    fail(ErrorCode::kInvalidArgument, "commit of {} sequences, the open step has {}",
         accepted.size(), open_step_.size());
  }
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    if (accepted[i] < 0 || accepted[i] > open_step_[i].tokens) {
      fail(ErrorCode::kInvalidArgument, "sequence {:#x}: {} accepted tokens, expected 0 .. {}",
           open_step_[i].id, accepted[i], open_step_[i].tokens);
    }
  }
  const int leaf_tokens = table_.leaf_tokens();
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    if (accepted[i] == 0) continue;
    const Sequence& s = table_.at(open_step_[i].id);
    WorkerLoad& home = loads_[static_cast<std::size_t>(s.home)];
    const std::int64_t length = s.length + accepted[i];
    const bool opens_leaf = ceil_div(length, leaf_tokens) != ceil_div(s.length, leaf_tokens);
    if (opens_leaf) home.inbound_roots -= inbound_roots(s, leaf_tokens);
    for (std::int64_t p = s.length; p < length; ++p) {
      const Leaf& leaf = s.leaves[static_cast<std::size_t>(p / leaf_tokens)];
      ++loads_[static_cast<std::size_t>(leaf.owner)].tokens;
    }
    decide(CommitOp{s.id, accepted[i]});
    if (opens_leaf) home.inbound_roots += inbound_roots(s, leaf_tokens);
  }
  open_step_.clear();
  in_step_.clear();
}

void Sequencer::abort_step() {
  order_.step.clear();  // where it was not taken yet: its epochs may be over by then
  open_step_.clear();
  in_step_.clear();
}

void Sequencer::check_not_in_step(SequenceId id) const {
  if (in_step_.contains(id)) {
    fail(ErrorCode::kFailedPrecondition, "sequence {:#x} is in the open step", id);
  }
}

void Sequencer::truncate(SequenceId id, std::int64_t length) {
  const Sequence& s = table_.at(id);
  check_not_in_step(id);
  if (length < 0 || length > s.length) {
    fail(ErrorCode::kInvalidArgument, "truncate of sequence {:#x} to {} tokens: length is {}", id,
         length, s.length);
  }
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

void Sequencer::free(SequenceId id) {
  const Sequence& s = table_.at(id);
  check_not_in_step(id);
  account(s, -1);
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const Leaf& leaf = s.leaves[i];
    PagePool& pool = pools_[static_cast<std::size_t>(leaf.owner)];
    const std::int64_t promised = ceil_div(leaf_rows(s, i, s.limit_tokens), kPageTokens) -
                                  static_cast<std::int64_t>(leaf.pages.size());
    for (const std::int32_t page : leaf.pages) (void)pool.release(page);
    pool.unreserve(static_cast<std::int32_t>(promised));
    sync_available(leaf.owner);
  }
  policies_.erase(id);
  decide(FreeOp{id});
}

Order Sequencer::take_order() {
  order_.round = ++round_;
  return std::exchange(order_, Order{});
}

}  // namespace tributary
