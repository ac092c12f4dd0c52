#include "core/placement/trial_moves.h"

#include <algorithm>
#include <cstddef>

#include "core/base/ceil_div.h"
#include "core/base/index.h"
#include "core/base/limits.h"

namespace tributary {

std::int32_t TrialMoves::owner(const Sequence& s, std::int64_t leaf) const {
  const auto moved = owners_.find(s.id);
  const auto l = static_cast<std::size_t>(leaf);
  return moved == owners_.end() ? s.leaves[l].owner : moved->second[l];
}

std::size_t TrialMoves::runs(const Sequence& s) const {
  std::size_t count = 1;
  for (std::int64_t l = 1; l < ceil_div(s.length, leaf_tokens_); ++l) {
    count += owner(s, l) != owner(s, l - 1) ? 1 : 0;
  }
  return count;
}

/// What a leaf holds and has reserved.
std::int64_t TrialMoves::pages_of(const Sequence& s, std::int64_t leaf) const {
  const auto rows = std::min<std::int64_t>(leaf_tokens_, s.limit_tokens - leaf * leaf_tokens_);
  return ceil_div(rows, std::int64_t{kPageTokens});
}

bool TrialMoves::fits(const Sequence& s, std::span<const LeafMove> moves) const {
  std::int64_t pages = 0;  // all moves have one target, or there is one
  for (const LeafMove& move : moves) {
    for (std::int64_t l = move.first_leaf; l < move.end_leaf; ++l) pages += pages_of(s, l);
  }
  return load_.workers()[at(moves.front().to)].available_pages >= pages;
}

std::vector<LeafRun> TrialMoves::runs_now(const Sequence& s) const {
  std::vector<LeafRun> runs;
  const std::int64_t leaves = ceil_div(s.length, leaf_tokens_);
  for (std::int64_t l = 0; l < leaves; ++l) {
    const std::int32_t worker = owner(s, l);
    if (runs.empty() || runs.back().worker != worker) runs.push_back({worker, l, l});
    ++runs.back().end;
  }
  return runs;
}

void TrialMoves::set_owner(const Sequence& s, std::int64_t leaf, std::int32_t owner) {
  const auto [moved, is_new] = owners_.try_emplace(s.id);
  if (is_new) {
    for (const Leaf& l : s.leaves) moved->second.push_back(l.owner);
  }
  std::int32_t& now = moved->second[static_cast<std::size_t>(leaf)];
  const std::int64_t pages = pages_of(s, leaf);
  const auto give = [&](std::int32_t worker, std::int64_t more) {
    load_.set_available_pages(worker, load_.workers()[at(worker)].available_pages + more);
  };
  give(now, pages);
  give(owner, -pages);
  now = owner;
}

void TrialMoves::apply(const Sequence& s, std::span<const LeafMove> moves) {
  // The runs of the sequence that was tried last are known.
  std::vector<LeafRun> before = last_.sequence == &s ? std::move(last_.after) : runs_now(s);
  load_.remove(before, s.home, s.length);
  last_ = {.sequence = &s, .leaves = {}, .before = std::move(before), .after = {}};
  for (const LeafMove& move : moves) {
    for (std::int64_t l = move.first_leaf; l < move.end_leaf; ++l) {
      last_.leaves.emplace_back(l, owner(s, l));
      set_owner(s, l, move.to);
    }
  }
  last_.after = runs_now(s);
  load_.add(last_.after, s.home, s.length);
}

void TrialMoves::undo() {
  const Sequence& s = *last_.sequence;
  load_.remove(last_.after, s.home, s.length);
  for (const auto& [leaf, owner] : last_.leaves) set_owner(s, leaf, owner);
  load_.add(last_.before, s.home, s.length);
  last_.leaves.clear();
  last_.after = std::move(last_.before);
}

}  // namespace tributary
