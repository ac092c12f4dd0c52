// The sequencer's steps and rounds; sequences as such are in sequencer.cc.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"
#include "core/sequencer/sequencer.h"

namespace tributary {

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
      std::vector<std::int64_t> spread(pools_.size(), 0);
      for_each_leaf(s, 0, s.length, leaf_tokens, [&](const Leaf& held, const LeafPart& part) {
        spread[static_cast<std::size_t>(held.owner)] += part.rows();
      });
      const auto pages = ceil_div(leaf_rows(s, i, s.limit_tokens), kPageTokens);
      owner = placement_.place_leaf(leaf.owner, pages, s.home, spread, policies_.at(s.id), load_);
      ++placements_;
      if (draining(owner)) owner = beside_drained(owner, s.home, pages);
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

void Sequencer::open_step(std::span<const StepRequest> requests) {
  std::unordered_set<SequenceId> ids;
  for (const StepRequest& request : requests) {
    const Sequence& s = table_.at(request.id);
    check_not_in_step(request.id);
    if (request.tokens < 1 || request.tokens > kMaxStepTokens) {
      fail(ErrorCode::kInvalidArgument, "sequence {}: {} new tokens, expected 1 .. {}", s.id,
           request.tokens, kMaxStepTokens);
    }
    if (s.length + request.tokens > s.limit_tokens) {
      fail(ErrorCode::kInvalidArgument, "sequence {}: {} + {} tokens exceed its limit of {}", s.id,
           s.length, request.tokens, s.limit_tokens);
    }
    if (!ids.insert(s.id).second) {
      fail(ErrorCode::kInvalidArgument, "sequence {} is in the step twice", s.id);
    }
  }
  for (const StepRequest& request : requests) {
    const Sequence& s = table_.at(request.id);
    grow(s, s.length + request.tokens);
    open_.emplace(s.id, OpenStep{request.tokens, false});
  }
}

void Sequencer::order_round(std::span<const RoundRequest> items, CanaryOrder canary) {
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
  for (const RoundRequest& item : items) {
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
  for (const RoundRequest& item : items) {
    order_.step.push_back({item.id, table_.at(item.id).epoch, open_.at(item.id).tokens});
    order_.item_layer.push_back(item.layer);
  }
  order_.canary = canary;
}

void Sequencer::check_commit(SequenceId id, std::int32_t accepted) const {
  const auto found = open_.find(id);
  if (found == open_.end()) {
    fail(ErrorCode::kFailedPrecondition, "sequence {} has no open step", id);
  }
  const OpenStep& step = found->second;
  if (accepted < 0 || accepted > step.tokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} accepted tokens, expected 0 .. {}", id,
         accepted, step.tokens);
  }
  if (accepted > 0 && !step.taken) {
    fail(ErrorCode::kFailedPrecondition,
         "sequence {}: {} accepted tokens of a step that was not ordered", id, accepted);
  }
}

/// Removes a sequence from the round that is in the order and was not taken by take_order().
void Sequencer::withdraw(SequenceId id) {
  const auto found = std::ranges::find(order_.step, id, &StepItem::id);
  if (found == order_.step.end()) return;
  const auto index = found - order_.step.begin();
  order_.step.erase(found);
  order_.item_layer.erase(order_.item_layer.begin() + index);
  CanaryOrder& canary = order_.canary;
  if (canary.item == index) canary = {};
  if (canary.item > index) --canary.item;
}

void Sequencer::commit(SequenceId id, std::int32_t accepted) {
  check_commit(id, accepted);
  withdraw(id);
  open_.erase(id);
  if (accepted == 0) return;
  const int leaf_tokens = table_.leaf_tokens();
  const Sequence& s = table_.at(id);
  const std::int64_t length = s.length + accepted;
  const bool opens_leaf = ceil_div(length, leaf_tokens) != ceil_div(s.length, leaf_tokens);
  if (opens_leaf) {
    account(s, -1);
  } else {
    const auto newest = static_cast<std::size_t>(s.length / leaf_tokens);
    load_.grow(s.leaves[newest].owner, accepted);
  }
  decide(CommitOp{id, accepted});
  if (opens_leaf) account(s, 1);
}

std::int32_t Sequencer::open_tokens(SequenceId id) const {
  const auto found = open_.find(id);
  return found == open_.end() ? 0 : found->second.tokens;
}

}  // namespace tributary
