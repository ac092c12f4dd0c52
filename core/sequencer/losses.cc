#include "core/sequencer/losses.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/sequencer/drain.h"
#include "core/sequencer/members.h"

namespace tributary {
namespace {

/// Whether any page of a leaf waits for rows that a worker took along.
bool waits_in_vain(const Leaf& leaf,
                   const std::vector<std::pair<std::int32_t, std::int32_t>>& pages) {
  return std::ranges::any_of(pages, [&](const auto& page) {
    return page.first == leaf.owner && std::ranges::count(leaf.pages, page.second) > 0;
  });
}

}  // namespace

void Losses::check_worker(std::int32_t worker) const {
  if (worker >= 0 && std::cmp_less(worker, ledger_.pools().size())) return;
  fail(ErrorCode::kInvalidArgument, "worker {} is lost or taken: the pool has {}", worker,
       ledger_.pools().size());
}

std::vector<std::int32_t> Losses::lost_leaves(const Sequence& s, std::int32_t worker,
                                              const Places& in_vain) const {
  std::vector<std::int32_t> leaves;
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    if (s.leaves[i].owner == worker || waits_in_vain(s.leaves[i], in_vain)) {
      leaves.push_back(static_cast<std::int32_t>(i));
    }
  }
  return leaves;
}

/// Whether one of the lost leaves has rows of the open step, or of those that it reads.
bool Losses::step_is_lost(const Sequence& s, const std::vector<std::int32_t>& leaves) const {
  const std::int64_t rows = s.length + steps_.open_tokens(s.id);
  return rows > s.length && std::ranges::any_of(leaves, [&](std::int32_t leaf) {
           return std::int64_t{leaf} * ledger_.table().leaf_tokens() < rows;
         });
}

Loss Losses::lose_worker(std::int32_t worker) {
  check_worker(worker);
  if (ledger_.pages().lost(worker)) {
    fail(ErrorCode::kFailedPrecondition, "worker {} is lost already", worker);
  }
  if (members(ledger_) == 1) {
    fail(ErrorCode::kFailedPrecondition, "worker {} is the last one of its pool", worker);
  }
  moves_.cancel_all_of(worker);
  const Places in_vain = copies_.lose_worker(worker);
  ledger_.set_lost(worker, true);
  resume_if_all_drain();
  sequences_.lose_closed(worker);
  std::vector<SequenceId> ids;
  for (const auto& [id, sequence] : ledger_.running()) ids.push_back(id);
  std::ranges::sort(ids);
  Loss loss;
  for (const SequenceId id : ids) {
    const Sequence& s = ledger_.table().at(id);
    std::vector<std::int32_t> leaves = lost_leaves(s, worker, in_vain);
    const bool step = steps_.open_tokens(id) > 0 && (s.home == worker || step_is_lost(s, leaves));
    if (step) {
      steps_.commit(id, 0);
      loss.steps.push_back(id);
    }
    const std::uint32_t epoch = s.epoch;
    if (step || !leaves.empty()) sequences_.lose(id, std::move(leaves), {.new_epoch = step});
    if (s.epoch != epoch) loss.epochs.push_back(id);
    if (s.home != worker) continue;
    ledger_.decide(HomeOp{id, new_home(ledger_, s)});
    loss.homes.push_back(id);
  }
  const PagePool& left = ledger_.pools()[static_cast<std::size_t>(worker)];
  if (left.free() != left.total() || left.reserved() > 0) {
    fail(ErrorCode::kInternal, "worker {} is lost, and {} pages are used there, {} reserved",
         worker, left.total() - left.free(), left.reserved());
  }
  return loss;
}

/// Who is left has to take what is there, whatever an operator wanted before.
void Losses::resume_if_all_drain() {
  const auto workers = static_cast<std::int32_t>(ledger_.pools().size());
  for (std::int32_t w = 0; w < workers; ++w) {
    if (!ledger_.draining(w)) return;
  }
  for (std::int32_t w = 0; w < workers; ++w) {
    if (!ledger_.pages().lost(w)) ledger_.set_draining(w, false);
  }
}

void Losses::take_worker(std::int32_t worker) {
  check_worker(worker);
  if (!ledger_.pages().lost(worker)) {
    fail(ErrorCode::kFailedPrecondition, "worker {} is taken again, and was not lost", worker);
  }
  ledger_.set_lost(worker, false);
  ledger_.set_draining(worker, false);
}

std::vector<SequenceId> Losses::give_room() {
  std::vector<SequenceId> changed = place_waiting();
  if (const auto id = youngest_gives_up()) changed.push_back(*id);
  return changed;
}

std::vector<SequenceId> Losses::place_waiting() {
  std::vector<SequenceId> placed;
  const std::vector<SequenceId> waiting(ledger_.waiting().begin(), ledger_.waiting().end());
  for (const SequenceId id : waiting) {
    const Sequence& s = ledger_.table().at(id);
    const auto places = room_for(s);
    if (!places) continue;
    for (const auto& [leaf, worker] : *places) {
      const auto i = static_cast<std::size_t>(leaf);
      ledger_.pages().reserve(worker, ledger_.leaf_pages(s, i, s.limit_tokens));
      ledger_.decide(ExtendOp{id, leaf, worker,
                              ledger_.pages().take(worker, ledger_.leaf_pages(s, i, s.length))});
    }
    placed.push_back(id);
  }
  return placed;
}

/// Leaves that are neighbours go to one worker where one has room for them, unless the sequence is
/// to lie on all: moves balance later. No value where the workers lack pages.
std::optional<Losses::Places> Losses::room_for(const Sequence& s) const {
  std::vector<std::int64_t> available;
  for (const WorkerLoad& worker : ledger_.load().workers()) {
    available.push_back(worker.available_pages);
  }
  const SpreadPolicy spread = ledger_.running().at(s.id).spread;
  Places places;
  const auto place = [&](std::size_t begin, std::size_t end) {
    std::int64_t pages = 0;
    for (std::size_t i = begin; i < end; ++i) pages += ledger_.leaf_pages(s, i, s.limit_tokens);
    const auto most = std::ranges::max_element(available);
    if (*most < pages) return false;
    *most -= pages;
    for (std::size_t i = begin; i < end; ++i) {
      places.emplace_back(static_cast<std::int32_t>(i),
                          static_cast<std::int32_t>(most - available.begin()));
    }
    return true;
  };
  for (std::size_t begin = 0; begin < s.leaves.size(); ++begin) {
    if (s.leaves[begin].owner != kNoWorker) continue;
    std::size_t end = begin;
    while (end < s.leaves.size() && s.leaves[end].owner == kNoWorker) ++end;
    const bool together = spread != SpreadPolicy::kAll && place(begin, end);
    if (!together && spread == SpreadPolicy::kSingle) return {};
    for (std::size_t i = begin; !together && i < end; ++i) {
      if (!place(i, i + 1)) return {};
    }
    begin = end;
  }
  return places;
}

/// First those that are too large for the workers that are left, which wait for another one. A step
/// ends before its sequence gives anything up.
std::optional<SequenceId> Losses::youngest_gives_up() {
  const std::set<SequenceId>& waiting = ledger_.waiting();
  if (waiting.empty() || waiting.size() < ledger_.running().size() || sequences_.closing() > 0) {
    return {};
  }
  const auto fits = [&](SequenceId id) { return fits_members(ledger_, ledger_.table().at(id)); };
  const auto oldest = std::ranges::find_if(waiting, fits);
  if (oldest == waiting.end()) return {};
  const std::vector<SequenceId> youngest_first(waiting.rbegin(), waiting.rend());
  for (const bool too_large : {true, false}) {
    for (const SequenceId id : youngest_first) {
      if (id == *oldest || fits(id) == too_large || steps_.open_tokens(id) > 0) continue;
      std::vector<std::int32_t> leaves;
      const Sequence& s = ledger_.table().at(id);
      for (std::size_t i = 0; i < s.leaves.size(); ++i) {
        if (s.leaves[i].owner != kNoWorker) leaves.push_back(static_cast<std::int32_t>(i));
      }
      if (leaves.empty()) continue;
      sequences_.lose(id, std::move(leaves), {.keep_blocks = true});
      return id;
    }
  }
  return {};
}

}  // namespace tributary
