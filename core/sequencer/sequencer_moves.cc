// The sequencer's moves of leaves; see core/moves for how far each has come.
#include <algorithm>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"
#include "core/sequencer/sequencer.h"

namespace tributary {

void Sequencer::begin_move(const LeafMove& move) {
  const Sequence& s = table_.at(move.id);
  if (moves_.contains(move.id)) {
    fail(ErrorCode::kAlreadyExists, "leaves of sequence {} are moving already", move.id);
  }
  if (filling_.contains(move.id)) {
    fail(ErrorCode::kFailedPrecondition, "move of sequence {}: its prompt is arriving", move.id);
  }
  const std::int64_t full = s.length / table_.leaf_tokens();
  if (move.first_leaf < 0 || move.first_leaf >= move.end_leaf || move.end_leaf > full) {
    fail(ErrorCode::kInvalidArgument, "move of leaves [{}, {}) of sequence {}: it has {} full ones",
         move.first_leaf, move.end_leaf, move.id, full);
  }
  const auto leaves =
      std::span(s.leaves).subspan(static_cast<std::size_t>(move.first_leaf),
                                  static_cast<std::size_t>(move.end_leaf - move.first_leaf));
  const std::int32_t from = leaves.front().owner;
  const bool together =
      std::ranges::all_of(leaves, [from](const Leaf& leaf) { return leaf.owner == from; });
  if (!together || move.to == from || move.to < 0 ||
      move.to >= static_cast<std::int32_t>(pools_.size())) {
    fail(ErrorCode::kInvalidArgument,
         "move of leaves [{}, {}) of sequence {} to worker {}: expected leaves of one worker, and "
         "another one of {}",
         move.first_leaf, move.end_leaf, move.id, move.to, pools_.size());
  }
  if (draining(move.to)) {
    fail(ErrorCode::kFailedPrecondition, "move of sequence {} to worker {}: it is being emptied",
         move.id, move.to);
  }
  RunningMove running{.move = move, .from = from, .from_pages = {}, .to_pages = {}};
  for (const Leaf& leaf : leaves) {
    running.from_pages.insert(running.from_pages.end(), leaf.pages.begin(), leaf.pages.end());
  }
  pools_[static_cast<std::size_t>(move.to)].reserve(
      static_cast<std::int32_t>(running.from_pages.size()));
  while (running.to_pages.size() < running.from_pages.size()) {
    running.to_pages.push_back(take_page(move.to));
  }
  sync_available(move.to);
  moves_.begin(std::move(running));
}

void Sequencer::order_ended(bool ok) {
  std::int64_t before = 0;
  for (const RunningMove& move : moves_.moves()) before += move.taken - move.copied;
  if (ok) move_totals_.page_copies += static_cast<std::uint64_t>(before);
  const MoveBook::Ended ended = moves_.ended(ok);
  for (const RunningMove& move : ended.failed) cancelled(move);
  for (const RunningMove& move : ended.completed) complete(move);
}

void Sequencer::cancel_move(SequenceId id) {
  if (const auto move = moves_.remove(id)) cancelled(*move);
}

/// Releases pages of a move.
void Sequencer::give_back(std::int32_t worker, std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    (void)pools_[static_cast<std::size_t>(worker)].release(page);
  }
  sync_available(worker);
}

void Sequencer::complete(const RunningMove& move) {
  const Sequence& s = table_.at(move.move.id);
  account(s, -1);
  decide(MoveOp{move.move.id, move.move.first_leaf, move.move.to, move.to_pages});
  account(s, 1);
  give_back(move.from, move.from_pages);
  ++move_totals_.completed;
}

/// The loads once the moves under way are completed. Pages are as they are: both ends hold them.
PoolLoad Sequencer::load_after_moves() const {
  PoolLoad load = load_;
  std::vector<LeafRun> before;
  std::vector<LeafRun> after;
  for (const RunningMove& running : moves_.moves()) {
    const LeafMove& move = running.move;
    const Sequence& s = table_.at(move.id);
    before.clear();
    after.clear();
    const auto add = [&after](std::int32_t owner, std::int64_t begin, std::int64_t end) {
      if (begin >= end) return;
      if (after.empty() || after.back().worker != owner) after.push_back({owner, begin, begin});
      after.back().end = end;
    };
    for_each_owner_run(s, ceil_div(s.length, table_.leaf_tokens()),
                       [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
                         before.push_back({owner, begin, end});
                         const auto first = std::clamp<std::int64_t>(move.first_leaf, begin, end);
                         const auto last = std::clamp<std::int64_t>(move.end_leaf, begin, end);
                         add(owner, begin, first);
                         add(move.to, first, last);
                         add(owner, last, end);
                       });
    load.remove(before, s.home, s.length);
    load.add(after, s.home, s.length);
  }
  return load;
}

/// Copies that nobody has been told of yet must not write into pages that are given away.
void Sequencer::cancelled(const RunningMove& move) {
  std::erase_if(order_.copies, [&](const PageCopy& copy) {
    return copy.to == move.move.to && std::ranges::count(move.to_pages, copy.to_page) > 0;
  });
  give_back(move.move.to, move.to_pages);
  ++move_totals_.cancelled;
}

void Sequencer::drain_worker(std::int32_t worker, bool drain) {
  if (worker < 0 || std::cmp_greater_equal(worker, pools_.size())) {
    fail(ErrorCode::kInvalidArgument, "drain of worker {}, the pool has {}", worker, pools_.size());
  }
  draining_[static_cast<std::size_t>(worker)] = drain;
  sync_available(worker);
  ++turnover_;
  if (!drain) return;
  std::vector<SequenceId> arriving;
  for (const RunningMove& move : moves_.moves()) {
    if (move.move.to == worker) arriving.push_back(move.move.id);
  }
  for (const SequenceId id : arriving) cancel_move(id);
}

/// For a leaf that opens and is reserved on a worker that gets no more: the home, or the worker
/// with the most pages; `reserved` where nobody has them.
std::int32_t Sequencer::beside_drained(std::int32_t reserved, std::int32_t home,
                                       std::int64_t pages) const {
  const auto available = [&](std::int32_t w) {
    return load_.workers()[static_cast<std::size_t>(w)].available_pages;
  };
  if (available(home) >= pages) return home;
  std::int32_t best = reserved;
  for (std::int32_t w = 0; std::cmp_less(w, pools_.size()); ++w) {
    if (available(w) >= pages && (best == reserved || available(w) > available(best))) best = w;
  }
  return best;
}

std::vector<const Sequence*> Sequencer::movable(bool of_any_policy) const {
  std::vector<const Sequence*> movable;
  for (const auto& [id, policy] : policies_) {
    if ((policy != SpreadPolicy::kAuto && !of_any_policy) || filling_.contains(id) ||
        moves_.contains(id))
      continue;
    movable.push_back(&table_.at(id));
  }
  std::ranges::sort(movable, {}, &Sequence::id);
  return movable;
}

}  // namespace tributary
