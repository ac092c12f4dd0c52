#include "core/sequencer/leaf_moves.h"

#include <algorithm>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"

namespace tributary {

LeafMoves::LeafMoves(int layers, PoolLedger& ledger, SequenceBlocks& blocks, PendingCopies& copies,
                     Order& order)
    : ledger_(ledger), blocks_(blocks), copies_(copies), order_(order), layers_(layers) {
  if (layers < 1) {
    fail(ErrorCode::kInvalidArgument, "moves: {} layers, expected at least 1", layers);
  }
}

bool LeafMoves::moving(SequenceId id) const {
  return std::ranges::any_of(moves_, [id](const RunningMove& m) { return m.move.id == id; });
}

/// Pages of committed rows alone, which never change.
std::int64_t LeafMoves::full_pages(const RunningMove& move) const {
  const auto pages = std::ssize(move.from_pages);
  if (!move.newest) return pages;
  const std::int64_t begin = std::int64_t{move.move.first_leaf} * ledger_.table().leaf_tokens();
  return std::min(pages, (ledger_.table().at(move.move.id).length - begin) / kPageTokens);
}

std::int64_t LeafMoves::page_copies(const RunningMove& move) const {
  return full_pages(move) * layers_;
}

void LeafMoves::begin(const LeafMove& move) {
  const SequenceTable& table = ledger_.table();
  const Sequence& s = table.at(move.id);
  if (moving(move.id)) {
    fail(ErrorCode::kAlreadyExists, "leaves of sequence {} are moving already", move.id);
  }
  if (ledger_.running().at(move.id).arriving) {
    fail(ErrorCode::kFailedPrecondition, "move of sequence {}: its prompt is arriving", move.id);
  }
  const std::int64_t full = s.length / table.leaf_tokens();
  const bool newest = move.first_leaf == full && move.end_leaf == full + 1 &&
                      full < std::ssize(s.leaves) &&
                      !s.leaves[static_cast<std::size_t>(full)].pages.empty();
  if (!newest &&
      (move.first_leaf < 0 || move.first_leaf >= move.end_leaf || move.end_leaf > full)) {
    fail(ErrorCode::kInvalidArgument,
         "move of leaves [{}, {}) of sequence {}: expected some of the {} full ones, or the one "
         "behind them, with pages",
         move.first_leaf, move.end_leaf, move.id, full);
  }
  const auto leaves =
      std::span(s.leaves).subspan(static_cast<std::size_t>(move.first_leaf),
                                  static_cast<std::size_t>(move.end_leaf - move.first_leaf));
  const std::int32_t from = leaves.front().owner;
  const bool together =
      std::ranges::all_of(leaves, [from](const Leaf& leaf) { return leaf.owner == from; });
  const auto workers = static_cast<std::int32_t>(ledger_.pools().size());
  if (!together || move.to == from || move.to < 0 || move.to >= workers) {
    fail(ErrorCode::kInvalidArgument,
         "move of leaves [{}, {}) of sequence {} to worker {}: expected leaves of one worker, and "
         "another one of {}",
         move.first_leaf, move.end_leaf, move.id, move.to, workers);
  }
  if (ledger_.draining(move.to)) {
    fail(ErrorCode::kFailedPrecondition, "move of sequence {} to worker {}: it is being emptied",
         move.id, move.to);
  }
  RunningMove running{
      .move = move, .from = from, .from_pages = {}, .to_pages = {}, .newest = newest};
  for (const Leaf& leaf : leaves) {
    running.from_pages.insert(running.from_pages.end(), leaf.pages.begin(), leaf.pages.end());
  }
  const std::int64_t pages = std::ssize(running.from_pages);
  if (newest) {
    running.promised =
        ledger_.leaf_pages(s, static_cast<std::size_t>(full), s.limit_tokens) - pages;
  }
  ledger_.pages().reserve(move.to, pages + running.promised);
  running.to_pages = ledger_.pages().take(move.to, pages);
  moves_.push_back(std::move(running));
}

std::int64_t LeafMoves::order_copies(std::int64_t most) {
  std::int64_t count = 0;
  std::vector<RunningMove> rest;
  for (RunningMove& move : moves_) {
    if (move.newest) take_new_pages(move);
    for (; count < most && move.ordered < page_copies(move); ++move.ordered, ++count) {
      const auto page = static_cast<std::size_t>(move.ordered / layers_);
      if (copies_.is_copied_to(move.from, move.from_pages[page])) break;
      order_.copies.push_back({.from = move.from,
                               .from_page = move.from_pages[page],
                               .to = move.move.to,
                               .to_page = move.to_pages[page],
                               .layer = static_cast<std::int32_t>(move.ordered % layers_)});
    }
    if (count < most && has_arrived(move)) {
      count += copy_last_pages(move);
      complete(move);
    } else {
      rest.push_back(std::move(move));
    }
  }
  moves_ = std::move(rest);
  return count;
}

/// The leaf has grown: as many pages more at the target, out of what is reserved there.
void LeafMoves::take_new_pages(RunningMove& move) {
  const Sequence& s = ledger_.table().at(move.move.id);
  const auto& pages = s.leaves[static_cast<std::size_t>(move.move.first_leaf)].pages;
  const std::int64_t more = std::ssize(pages) - std::ssize(move.from_pages);
  if (more == 0) return;
  const auto taken = ledger_.pages().take(move.move.to, more);
  move.to_pages.insert(move.to_pages.end(), taken.begin(), taken.end());
  move.from_pages = pages;
  move.promised -= more;
}

/// Whether nothing but the last pages of a newest leaf is left to copy, and they can be.
bool LeafMoves::has_arrived(const RunningMove& move) const {
  if (!move.newest || move.copied < page_copies(move)) return false;
  const auto last = std::span(move.from_pages).subspan(static_cast<std::size_t>(full_pages(move)));
  return std::ranges::none_of(
      last, [&](std::int32_t page) { return copies_.is_copied_to(move.from, page); });
}

/// Rows of an open step among them: what its layers have written so far.
std::int64_t LeafMoves::copy_last_pages(const RunningMove& move) {
  const auto full = static_cast<std::size_t>(full_pages(move));
  for (std::size_t i = full; i < move.from_pages.size(); ++i) {
    copies_.add({.from = move.from,
                 .from_page = move.from_pages[i],
                 .to = move.move.to,
                 .to_page = move.to_pages[i]});
  }
  return std::ssize(move.from_pages) * layers_ - page_copies(move);
}

void LeafMoves::order_taken() {
  for (RunningMove& move : moves_) move.taken = move.ordered;
}

void LeafMoves::order_ended(bool ok) {
  std::vector<RunningMove> rest;
  for (RunningMove& move : moves_) {
    const std::int64_t ended = move.taken - move.copied;
    if (ok) {
      totals_.page_copies += static_cast<std::uint64_t>(ended);
      move.copied = move.taken;
    }
    if (!ok && ended > 0) {
      cancelled(move);
    } else if (!move.newest && move.copied == page_copies(move)) {
      complete(move);
    } else {
      rest.push_back(std::move(move));
    }
  }
  moves_ = std::move(rest);
}

void LeafMoves::cancel(SequenceId id) {
  cancel_where([&](const RunningMove& m) { return m.move.id == id; });
}

void LeafMoves::cancel_newest(SequenceId id) {
  cancel_where([&](const RunningMove& m) { return m.move.id == id && m.newest; });
}

void LeafMoves::cancel_all_of(std::int32_t worker) {
  cancel_where([&](const RunningMove& m) { return m.from == worker || m.move.to == worker; });
}

void LeafMoves::cancel_where(const std::function<bool(const RunningMove&)>& chosen) {
  std::erase_if(moves_, [&](const RunningMove& m) {
    if (!chosen(m)) return false;
    cancelled(m);
    return true;
  });
}

void LeafMoves::complete(const RunningMove& move) {
  ledger_.decide(MoveOp{move.move.id, move.move.first_leaf, move.move.to, move.to_pages});
  blocks_.moved(move.move.id, move.move.first_leaf, move.move.to, move.to_pages);
  ledger_.pages().release(move.from, move.from_pages);
  ledger_.pages().unreserve(move.from, move.promised);  // those of `to` are the sequence's now
  ++totals_.completed;
}

/// Copies that nobody has been told of yet must not write into pages that are given away.
void LeafMoves::cancelled(const RunningMove& move) {
  std::erase_if(order_.copies, [&](const PageCopy& copy) {
    return copy.to == move.move.to && std::ranges::count(move.to_pages, copy.to_page) > 0;
  });
  ledger_.pages().release(move.move.to, move.to_pages);
  ledger_.pages().unreserve(move.move.to, move.promised);
  ++totals_.cancelled;
}

PoolLoad LeafMoves::load_afterwards() const {
  PoolLoad load = ledger_.load();
  std::vector<LeafRun> before;
  std::vector<LeafRun> after;
  for (const RunningMove& one : running()) {
    const LeafMove& move = one.move;
    const Sequence& s = ledger_.table().at(move.id);
    before.clear();
    after.clear();
    const auto add = [&after](std::int32_t owner, std::int64_t begin, std::int64_t end) {
      if (begin >= end) return;
      if (after.empty() || after.back().worker != owner) after.push_back({owner, begin, begin});
      after.back().end = end;
    };
    for_each_owner_run(s, ceil_div(s.length, ledger_.table().leaf_tokens()),
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

void LeafMoves::drain_worker(std::int32_t worker, bool drain) {
  if (worker < 0 || std::cmp_greater_equal(worker, ledger_.pools().size())) {
    fail(ErrorCode::kInvalidArgument, "drain of worker {}, the pool has {}", worker,
         ledger_.pools().size());
  }
  if (ledger_.pages().lost(worker)) {
    fail(ErrorCode::kFailedPrecondition, "drain of worker {}: it is lost", worker);
  }
  ledger_.set_draining(worker, drain);
  if (!drain) return;
  cancel_where([&](const RunningMove& m) { return m.move.to == worker; });
}

std::vector<const Sequence*> LeafMoves::movable() const {
  std::vector<const Sequence*> movable;
  for (const SequenceId id : ledger_.with_full_leaves()) {
    const PoolLedger::Running& sequence = ledger_.running().at(id);
    if (sequence.spread != SpreadPolicy::kAuto || sequence.arriving || moving(id)) continue;
    movable.push_back(&ledger_.table().at(id));
  }
  return movable;
}

std::vector<const Sequence*> LeafMoves::movable_from(std::int32_t worker) const {
  std::vector<const Sequence*> movable;
  if (ledger_.pools()[static_cast<std::size_t>(worker)].used() == 0) return movable;
  for (const auto& [id, sequence] : ledger_.running()) {
    const Sequence& s = ledger_.table().at(id);
    const bool has_rows = std::ranges::any_of(s.leaves, [worker](const Leaf& leaf) {
      return leaf.owner == worker && !leaf.pages.empty();
    });
    if (has_rows && !sequence.arriving && !moving(id)) movable.push_back(&s);
  }
  std::ranges::sort(movable, {}, &Sequence::id);
  return movable;
}

}  // namespace tributary
