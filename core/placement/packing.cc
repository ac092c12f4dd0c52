#include "core/placement/packing.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"

namespace tributary {
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

bool Packing::pack_single() {
  Block all = block(0, limit_leaves_);
  const std::size_t worker = smallest(all.pages, [](const Worker& w) { return w.tokens; });
  if (worker == kNobody) return false;
  take(worker, all);
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

bool Packing::pack_below(std::int64_t line, std::int64_t most) {
  // The root of the sequence's tree: its empty right part is cut off by block().
  const auto size = std::bit_ceil(static_cast<std::uint64_t>(prompt_leaves_));
  return place_below(0, static_cast<std::int64_t>(size), line, most);
}

bool Packing::place_below(std::int64_t first, std::int64_t size, std::int64_t line,
                          std::int64_t most) {
  const Block here = block(first, std::min(first + size, prompt_leaves_));
  if (here.tokens <= most) {
    // Among the workers where the block stays within `most`, the least loaded is at `line` or
    // less, or none is.
    std::size_t best = kNobody;
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.pages < here.pages || worker.own + here.tokens > most) continue;
      if (best == kNobody || worker.tokens < workers_[best].tokens) best = w;
    }
    if (best != kNobody && workers_[best].tokens + here.tokens <= line) {
      take(best, here);
      return true;
    }
  }
  if (size == 1) {
    const std::size_t worker = smallest(here.pages, [](const Worker& w) { return w.tokens; });
    if (worker == kNobody) return false;
    take(worker, here);
    return true;
  }
  const std::int64_t half = size / 2;
  return place_below(first, half, line, most) &&
         (first + half >= prompt_leaves_ || place_below(first + half, half, line, most));
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
