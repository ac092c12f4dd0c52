#include "core/placement/packing.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"

namespace tributary {

std::vector<LeafRun> runs_of(std::span<const std::int32_t> leaf_owner) {
  std::vector<LeafRun> runs;
  for (const std::int32_t worker : leaf_owner) {
    const std::int64_t leaf = runs.empty() ? 0 : runs.back().end;
    if (runs.empty() || runs.back().worker != worker) runs.push_back({worker, leaf, leaf});
    ++runs.back().end;
  }
  return runs;
}

Packing::Packing(std::span<const WorkerLoad> loads, std::int64_t prompt_tokens,
                 std::int64_t limit_tokens, std::int64_t leaf_tokens)
    : prompt_tokens_(prompt_tokens),
      limit_tokens_(limit_tokens),
      leaf_tokens_(leaf_tokens),
      prompt_leaves_(ceil_div(prompt_tokens, leaf_tokens)),
      limit_leaves_(ceil_div(limit_tokens, leaf_tokens)) {
  workers_.reserve(loads.size());
  for (const WorkerLoad& load : loads) workers_.push_back({load.tokens, load.available_pages, 0});
  owner_.assign(static_cast<std::size_t>(limit_leaves_), -1);
}

Packing::Block Packing::block(std::int64_t first, std::int64_t end) const {
  const std::int64_t begin_token = first * leaf_tokens_;
  const std::int64_t end_token = end * leaf_tokens_;
  return {.first = first,
          .end = end,
          .tokens = std::max<std::int64_t>(0, std::min(prompt_tokens_, end_token) - begin_token),
          .pages = ceil_div(std::min(limit_tokens_, end_token) - begin_token, kPageTokens)};
}

void Packing::take(std::size_t worker, const Block& block) {
  Worker& w = workers_[worker];
  w.tokens += block.tokens;
  w.pages -= block.pages;
  w.own += block.tokens > 0 ? block.tokens : block.pages * kPageTokens;
  std::fill(owner_.begin() + block.first, owner_.begin() + block.end,
            static_cast<std::int32_t>(worker));
}

template <typename Key>
std::size_t Packing::smallest(std::int64_t pages, Key key) const {
  std::size_t best = kNobody;
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    if (workers_[w].pages < pages) continue;
    if (best == kNobody || key(workers_[w]) < key(workers_[best])) best = w;
  }
  return best;
}

bool Packing::pack_single(std::int32_t worker) {
  return pack_run({.worker = worker, .begin = 0, .end = limit_leaves_});
}

bool Packing::pack_run(const LeafRun& run) {
  const Block here = block(run.begin, run.end);
  const auto worker = static_cast<std::size_t>(run.worker);
  if (workers_[worker].pages < here.pages) return false;
  take(worker, here);
  return true;
}

bool Packing::pack_runs(std::span<const LeafRun> runs) {
  return std::ranges::all_of(runs, [&](const LeafRun& run) { return pack_run(run); });
}

bool Packing::pack_in_turn() {
  std::size_t worker = kNobody;
  for (std::int64_t leaf = 0; leaf < prompt_leaves_; ++leaf) {
    const Block here = block(leaf, leaf + 1);
    if (worker == kNobody || workers_[worker].pages < here.pages) {
      worker = smallest(here.pages, [](const Worker& w) { return std::pair(-w.pages, w.tokens); });
    }
    if (worker == kNobody) return false;
    take(worker, here);
  }
  return true;
}

bool Packing::pack_evenly() {
  const auto workers = static_cast<std::int64_t>(workers_.size());
  const auto share =
      static_cast<std::uint64_t>(std::max<std::int64_t>(1, prompt_leaves_ / workers));
  const auto run = static_cast<std::int64_t>(std::bit_floor(share));
  for (std::int64_t first = 0; first < prompt_leaves_; first += run) {
    if (!place_evenly(first, run)) return false;
  }
  return true;
}

bool Packing::place_evenly(std::int64_t first, std::int64_t size) {
  const Block run = block(first, std::min(first + size, prompt_leaves_));
  const std::size_t worker =
      smallest(run.pages, [](const Worker& w) { return std::pair(w.own, w.tokens); });
  if (worker != kNobody) {
    take(worker, run);
    return true;
  }
  if (size == 1) return false;
  const std::int64_t half = size / 2;
  return place_evenly(first, half) &&
         (first + half >= prompt_leaves_ || place_evenly(first + half, half));
}

bool Packing::reserve_evenly() {
  for (std::int64_t leaf = prompt_leaves_; leaf < limit_leaves_; ++leaf) {
    const Block here = block(leaf, leaf + 1);
    const std::size_t worker =
        smallest(here.pages, [](const Worker& w) { return std::pair(w.own, w.tokens); });
    if (worker == kNobody) return false;
    take(worker, here);
  }
  return true;
}

bool Packing::reserve_where_free() {
  for (std::int64_t leaf = prompt_leaves_; leaf < limit_leaves_; ++leaf) {
    const Block here = block(leaf, leaf + 1);
    const std::size_t worker =
        smallest(here.pages, [](const Worker& w) { return std::pair(-w.pages, w.tokens); });
    if (worker == kNobody) return false;
    take(worker, here);
  }
  return true;
}

}  // namespace tributary
