#include "core/sequencer/shared_place.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"

namespace tributary {
namespace {

/// What computing a row of a prompt takes, in microseconds. A node of eight H800 reads 73,700
/// tokens of DeepSeek-V3 per second, 56% of them out of caches (DeepSeek, "One More Thing", March
/// 2025): 31 us for each that it computes; newer nodes are faster.
constexpr double kPrefillRowUs = 25;

class Places {
 public:
  Places(const PoolLedger& ledger, const AdmitRequest& request,
         const std::vector<std::string>& names)
      : ledger_(ledger),
        request_(request),
        leaf_blocks_(
            static_cast<std::size_t>(ledger.table().leaf_tokens() / request.prefix.block_tokens)),
        limit_(request.prompt_tokens + request.max_new_tokens) {
    // A sequence has a page of its own at least.
    const std::int64_t most =
        std::min(std::ssize(names), (limit_ - 1) / request.prefix.block_tokens);
    for (const std::string& name : std::span(names).first(static_cast<std::size_t>(most))) {
      const auto copies = ledger.pages().blocks().copies(name);
      if (copies.empty()) break;
      copies_.push_back(copies);
    }
  }

  /// Whether any may be shared.
  [[nodiscard]] bool any() const { return !copies_.empty(); }

  /// The first blocks that lie where the assignment wants them.
  [[nodiscard]] std::vector<NamedBlock*> shared(const Assignment& assignment) const {
    std::vector<NamedBlock*> blocks;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      NamedBlock* block = block_at(i, assignment.leaf_owner[i / leaf_blocks_]);
      if (block == nullptr) break;
      blocks.push_back(block);
    }
    return blocks;
  }

  /// All leaves on the worker that has the most of the first blocks.
  [[nodiscard]] std::optional<Assignment> on_one() const {
    std::size_t most = 0;
    std::optional<Assignment> best;
    for (const auto& first : copies_.front()) {
      Assignment one{first->worker, std::vector(leaves(), first->worker)};
      const std::size_t blocks = shared(one).size();
      if (blocks > most) {
        most = blocks;
        best = std::move(one);
      }
    }
    return best;
  }

  /// Each leaf on the worker that has the most of its first blocks; the rest as in `chosen`.
  [[nodiscard]] Assignment leaf_by_leaf(Assignment chosen) const {
    for (std::size_t leaf = 0; leaf * leaf_blocks_ < copies_.size(); ++leaf) {
      const std::size_t begin = leaf * leaf_blocks_;
      const std::size_t end = std::min(begin + leaf_blocks_, copies_.size());
      std::size_t most = 0;
      for (const auto& first : copies_[begin]) {
        std::size_t next = begin;
        while (next < end && block_at(next, first->worker) != nullptr) ++next;
        if (next - begin <= most) continue;
        most = next - begin;
        chosen.leaf_owner[leaf] = first->worker;
      }
      if (most < leaf_blocks_) break;
    }
    const auto prompt = chosen.leaf_owner.begin() + static_cast<std::ptrdiff_t>(prompt_leaves());
    if (std::find(chosen.leaf_owner.begin(), prompt, chosen.home) == prompt) {
      chosen.home = *std::prev(prompt);
    }
    return chosen;
  }

  /// Whether its workers have the pages that it would not share, and those of its blocks that are
  /// idle.
  [[nodiscard]] bool fits(const SharedPlace& place) const {
    std::vector<std::int64_t> pages(ledger_.pools().size(), 0);
    const std::int64_t leaf_tokens = ledger_.table().leaf_tokens();
    for (std::size_t i = 0; i < place.assignment.leaf_owner.size(); ++i) {
      const std::int64_t rows =
          std::min(leaf_tokens, limit_ - static_cast<std::int64_t>(i) * leaf_tokens);
      pages[at(place.assignment.leaf_owner[i])] += ceil_div(rows, std::int64_t{kPageTokens});
    }
    for (const NamedBlock* block : place.shared) {
      const PagePool& pool = ledger_.pools()[at(block->worker)];
      pages[at(block->worker)] -= std::ranges::count_if(
          block->pages, [&](std::int32_t page) { return pool.reference_count(page) > 0; });
    }
    for (std::size_t w = 0; w < pages.size(); ++w) {
      if (pages[w] > ledger_.load().workers()[w].available_pages) return false;
    }
    return true;
  }

  /// In microseconds, beside what any place costs.
  [[nodiscard]] double price(const SharedPlace& place) const {
    const CostModelConfig& model = ledger_.placement().prices().config();
    const std::int64_t present = std::ssize(place.shared) * request_.prefix.block_tokens;
    const double row_us = kPrefillRowUs + static_cast<double>(model.attention.row_bytes()) *
                                              model.layers * model.costs.network_byte_ns * 1e-3;
    std::vector<LeafRun> runs;
    for (std::size_t i = 0; i < prompt_leaves(); ++i) {
      const std::int32_t owner = place.assignment.leaf_owner[i];
      const auto leaf = static_cast<std::int64_t>(i);
      if (runs.empty() || runs.back().worker != owner) runs.push_back({owner, leaf, leaf});
      runs.back().end = leaf + 1;
    }
    PoolLoad load = ledger_.load();
    load.add(runs, place.assignment.home, std::max<std::int64_t>(request_.prompt_tokens, 1));
    return load.step_us(ledger_.placement().prices()) *
               static_cast<double>(request_.max_new_tokens) +
           static_cast<double>(request_.prompt_tokens - present) * row_us;
  }

 private:
  /// The copy of a block on that worker, unless that is being emptied.
  [[nodiscard]] NamedBlock* block_at(std::size_t block, std::int32_t worker) const {
    if (ledger_.draining(worker)) return nullptr;
    for (const auto& copy : copies_[block]) {
      if (copy->worker == worker) return copy.get();
    }
    return nullptr;
  }
  static std::size_t at(std::int32_t worker) { return static_cast<std::size_t>(worker); }
  [[nodiscard]] std::size_t leaves() const {
    return static_cast<std::size_t>(ceil_div(limit_, std::int64_t{ledger_.table().leaf_tokens()}));
  }
  [[nodiscard]] std::size_t prompt_leaves() const {
    return static_cast<std::size_t>(ceil_div(std::max<std::int64_t>(request_.prompt_tokens, 1),
                                             std::int64_t{ledger_.table().leaf_tokens()}));
  }

  const PoolLedger& ledger_;
  const AdmitRequest& request_;
  std::vector<std::span<const std::unique_ptr<NamedBlock>>> copies_;  // of the first blocks
  std::size_t leaf_blocks_;                                           // blocks of a leaf
  std::int64_t limit_;
};

}  // namespace

std::optional<SharedPlace> place_with_blocks(const PoolLedger& ledger, const AdmitRequest& request,
                                             const std::vector<std::string>& names,
                                             std::optional<Assignment> chosen) {
  const auto as_chosen = [&]() -> std::optional<SharedPlace> {
    if (!chosen) return {};
    return SharedPlace{*std::move(chosen), {}};
  };
  if (names.empty()) return as_chosen();
  const Places places(ledger, request, names);
  if (!places.any()) return as_chosen();
  std::vector<SharedPlace> candidates;
  const auto add = [&](Assignment assignment) {
    SharedPlace place{std::move(assignment), {}};
    place.shared = places.shared(place.assignment);
    candidates.push_back(std::move(place));
  };
  if (chosen) add(*chosen);
  if (request.spread != SpreadPolicy::kAll) {
    std::optional<Assignment> one = places.on_one();
    if (one && request.spread == SpreadPolicy::kAuto)
      add(places.leaf_by_leaf(chosen ? *chosen : *one));
    if (one) add(*std::move(one));
  }
  SharedPlace* best = nullptr;
  double least = 0;
  for (SharedPlace& place : candidates) {
    if (!places.fits(place)) continue;
    const double price = candidates.size() == 1 ? 0 : places.price(place);
    if (best != nullptr && price >= least) continue;
    best = &place;
    least = price;
  }
  if (best == nullptr) return {};
  return std::move(*best);
}

}  // namespace tributary
