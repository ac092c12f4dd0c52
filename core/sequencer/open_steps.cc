#include "core/sequencer/open_steps.h"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"
#include "core/sequencer/drain.h"

namespace tributary {

/// Chooses the owner of a leaf that opens now, and moves the reservation there.
std::int32_t OpenSteps::place_leaf(const Sequence& s, std::size_t leaf) {
  const std::int32_t reserved = s.leaves[leaf].owner;
  std::vector<std::int64_t> spread(ledger_.pools().size(), 0);
  for_each_leaf(s, 0, s.length, ledger_.table().leaf_tokens(),
                [&](const Leaf& held, const LeafPart& part) {
                  spread[static_cast<std::size_t>(held.owner)] += part.rows();
                });
  const std::int64_t pages = ledger_.leaf_pages(s, leaf, s.limit_tokens);
  std::int32_t owner = ledger_.placement().place_leaf(
      reserved, pages, s.home, spread, ledger_.running().at(s.id).spread, ledger_.load());
  if (ledger_.draining(owner)) owner = beside_drained(ledger_, owner, s.home, pages);
  if (owner != reserved) {
    ledger_.pages().reserve(owner, pages);
    ledger_.pages().unreserve(reserved, pages);
  }
  return owner;
}

/// Gives the sequence pages for its first `length` rows.
void OpenSteps::grow(const Sequence& s, std::int64_t length) {
  const std::int64_t leaf_tokens = ledger_.table().leaf_tokens();
  for (std::int64_t l = s.length / leaf_tokens; l * leaf_tokens < length; ++l) {
    const auto i = static_cast<std::size_t>(l);
    const std::int64_t have = std::ssize(s.leaves[i].pages);
    const std::int64_t want = ledger_.leaf_pages(s, i, length);
    if (want <= have) continue;
    const std::int32_t owner = have == 0 && l > 0 ? place_leaf(s, i) : s.leaves[i].owner;
    ledger_.decide(ExtendOp{s.id, static_cast<std::int32_t>(l), owner,
                            ledger_.pages().take(owner, want - have)});
  }
}

void OpenSteps::check_not_open(SequenceId id) const {
  if (open_.contains(id)) {
    fail(ErrorCode::kFailedPrecondition, "sequence {} is in an open step", id);
  }
}

/// A leaf that was lost without rows may wait for room until the sequence grows into it.
void OpenSteps::check_owners(const Sequence& s, std::int64_t length) const {
  if (!ledger_.waiting().contains(s.id)) return;
  const auto leaves = ceil_div(length, ledger_.table().leaf_tokens());
  const auto needed = std::span(s.leaves).first(static_cast<std::size_t>(leaves));
  if (std::ranges::count(needed, kNoWorker, &Leaf::owner) == 0) return;
  fail(ErrorCode::kUnavailable,
       "sequence {} waits for room on other workers since one was lost: try again", s.id);
}

void OpenSteps::open(std::span<const StepItem> items) {
  std::unordered_set<SequenceId> ids;
  for (const StepItem& item : items) {
    const Sequence& s = ledger_.table().at(item.id);
    check_not_open(item.id);
    if (item.tokens < 1 || item.tokens > kMaxStepTokens) {
      fail(ErrorCode::kInvalidArgument, "sequence {}: {} new tokens, expected 1 .. {}", s.id,
           item.tokens, kMaxStepTokens);
    }
    if (s.length + item.tokens > s.limit_tokens) {
      fail(ErrorCode::kInvalidArgument, "sequence {}: {} + {} tokens exceed its limit of {}", s.id,
           s.length, item.tokens, s.limit_tokens);
    }
    check_owners(s, s.length + item.tokens);
    if (!ids.insert(s.id).second) {
      fail(ErrorCode::kInvalidArgument, "sequence {} is in the step twice", s.id);
    }
  }
  for (const StepItem& item : items) {
    const Sequence& s = ledger_.table().at(item.id);
    grow(s, s.length + item.tokens);
    open_.emplace(s.id, Step{item.tokens, false});
  }
}

void OpenSteps::order_round(std::span<const StepItem> items, CanaryOrder canary) {
  if (!order_.step.empty()) {
    fail(ErrorCode::kFailedPrecondition, "a round of {} sequences is ordered already",
         order_.step.size());
  }
  if (items.empty()) fail(ErrorCode::kInvalidArgument, "a round of no sequence");
  if (canary.item < -1 || std::cmp_greater_equal(canary.item, items.size()) || canary.head < 0) {
    fail(ErrorCode::kInvalidArgument, "canary of item {}, head {}: the round has {} items",
         canary.item, canary.head, items.size());
  }
  std::unordered_set<SequenceId> ids;
  for (const StepItem& item : items) {
    if (!open_.contains(item.id)) {
      fail(ErrorCode::kFailedPrecondition, "sequence {} has no open step", item.id);
    }
    if (item.layer < 0) {
      fail(ErrorCode::kInvalidArgument, "sequence {}: layer is {}, expected at least 0", item.id,
           item.layer);
    }
    if (!ids.insert(item.id).second) {
      fail(ErrorCode::kInvalidArgument, "sequence {} is in the round twice", item.id);
    }
  }
  for (const StepItem& item : items) {
    order_.step.push_back(
        next_item(ledger_.table().at(item.id), open_.at(item.id).tokens, item.layer));
  }
  order_.canary = canary;
}

void OpenSteps::order_taken() {
  for (const StepItem& item : order_.step) open_.at(item.id).taken = true;
}

void OpenSteps::check_commit(SequenceId id, std::int32_t accepted) const {
  const auto found = open_.find(id);
  if (found == open_.end()) {
    fail(ErrorCode::kFailedPrecondition, "sequence {} has no open step", id);
  }
  const Step& step = found->second;
  if (accepted < 0 || accepted > step.tokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} accepted tokens, expected 0 .. {}", id,
         accepted, step.tokens);
  }
  if (accepted > 0 && !step.taken) {
    fail(ErrorCode::kFailedPrecondition,
         "sequence {}: {} accepted tokens of a step that was not ordered", id, accepted);
  }
}

/// Removes a sequence from the round that is in the order and was not taken.
void OpenSteps::withdraw(SequenceId id) {
  const auto found = std::ranges::find(order_.step, id, &StepItem::id);
  if (found == order_.step.end()) return;
  const auto index = found - order_.step.begin();
  order_.step.erase(found);
  CanaryOrder& canary = order_.canary;
  if (canary.item == index) canary = {};
  if (canary.item > index) --canary.item;
}

void OpenSteps::commit(SequenceId id, std::int32_t accepted) {
  check_commit(id, accepted);
  withdraw(id);
  open_.erase(id);
  if (accepted > 0) ledger_.decide(CommitOp{id, accepted});
}

std::int32_t OpenSteps::open_tokens(SequenceId id) const {
  const auto found = open_.find(id);
  return found == open_.end() ? 0 : found->second.tokens;
}

}  // namespace tributary
