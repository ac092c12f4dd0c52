// The load of a pool's running sequences on each of its workers, kept as they come, grow and go. It
// predicts the time of a round of all of them without a plan.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/index.h"
#include "core/cost/round_work.h"
#include "core/placement/exchange_load.h"
#include "core/plan/merge_tree.h"
#include "core/plan/plan.h"

namespace tributary {

/// Leaves [begin, end) of a sequence, on one worker.
struct LeafRun {
  std::int32_t worker = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Counts how often each level of a merge tree is in use.
class LevelCounts {
 public:
  void add(std::size_t level, std::int32_t times) {
    counts_[level] += times;
    const std::uint32_t bit = std::uint32_t{1} << level;
    used_ = counts_[level] != 0 ? used_ | bit : used_ & ~bit;
  }
  /// The number of levels in use.
  [[nodiscard]] int used() const noexcept { return std::popcount(used_); }
  /// The highest level in use, counted from 1; 0 if none is.
  [[nodiscard]] int height() const noexcept { return std::bit_width(used_); }

 private:
  std::array<std::int32_t, 32> counts_{};  // leaf numbers have 31 bits
  std::uint32_t used_ = 0;
};

/// One worker as placement sees it.
struct WorkerLoad {
  /// Cached tokens of running sequences. Planned growth is not included: on a chat trace including
  /// it balances no better (all of it: worse), since limits are far above the decoded lengths.
  std::int64_t tokens = 0;
  std::int64_t rows = 0;             // of them, that a round reads: see AttendedLength
  std::int64_t available_pages = 0;  // neither used nor reserved; set by the owner of the load
  std::int64_t homes = 0;            // running sequences whose home it is
  std::int64_t leaves = 0;           // that hold tokens
  std::int64_t merges = 0;           // of its own leaves
  std::int64_t home_merges = 0;      // of subtree roots, as a home
  LevelCounts merge_heights;         // subtrees of a height have merges on all levels below
  LevelCounts home_levels;

  /// This worker's part of a round of all sequences, each with one new token.
  [[nodiscard]] AttendWork attend() const {
    return {.leaves = leaves,
            .rows = rows,
            .row_tokens = rows,
            .merges = merges,
            .merge_levels = merge_heights.height()};
  }
};

/// A round here is one of all sequences, each with one new token that is already counted. All
/// counts are integers: equal sequences give equal loads, whatever came and went before.
class PoolLoad {
 public:
  /// Starts with an empty pool. Throws kInvalidArgument for fewer than one worker, or fewer than
  /// one worker per node.
  PoolLoad(int workers, const CostModelConfig& model, std::int64_t pages_per_worker);

  /// Adds a sequence of `tokens` whose leaves lie in `runs`, in order and complete.
  void add(std::span<const LeafRun> runs, std::int32_t home, std::int64_t tokens) {
    change(runs, home, tokens, 1);
  }
  /// Removes a sequence that was added with the same arguments.
  void remove(std::span<const LeafRun> runs, std::int32_t home, std::int64_t tokens) {
    change(runs, home, tokens, -1);
  }
  /// Grows sequences by `tokens` in their newest leaves, which have some already; `rows` of them
  /// are of sequences that stay within their topk, or have none. The others are beyond it already.
  void grow(std::int32_t worker, std::int64_t tokens, std::int64_t rows) {
    workers_[at(worker)].tokens += tokens;
    workers_[at(worker)].rows += rows;
  }
  void set_available_pages(std::int32_t worker, std::int64_t pages) {
    workers_[at(worker)].available_pages = pages;
  }

  [[nodiscard]] std::span<const WorkerLoad> workers() const noexcept { return workers_; }
  [[nodiscard]] const ExchangeLoad& exchange() const noexcept { return exchange_; }
  [[nodiscard]] std::int64_t sequences() const noexcept { return sequences_; }
  /// Includes used and reserved pages.
  [[nodiscard]] std::int64_t pages_per_worker() const noexcept { return pages_per_worker_; }

  [[nodiscard]] double attend_us(std::int32_t worker, const RoundPrices& prices) const {
    return prices.attend_us(workers_[at(worker)].attend());
  }
  /// The times of one worker; `prices` are those of this pool.
  [[nodiscard]] WorkerTimes times(std::int32_t worker, Exchange exchange,
                                  const RoundPrices& prices) const;
  [[nodiscard]] RoundTimes round(Exchange exchange, const RoundPrices& prices) const;
  /// Predicted time of a step of all sequences, with the exchange that makes it shorter.
  [[nodiscard]] double step_us(const RoundPrices& prices) const;

 private:
  void change(std::span<const LeafRun> runs, std::int32_t home, std::int64_t tokens,
              std::int32_t sign);
  void change_roots(const LeafRun& run, std::int64_t leaves, std::int32_t sign);
  void change_home(std::int32_t home, std::int64_t leaves, std::int32_t sign);

  std::int64_t leaf_tokens_;
  std::int64_t topk_;
  std::int64_t pages_per_worker_;
  std::int64_t sequences_ = 0;
  std::vector<WorkerLoad> workers_;
  ExchangeLoad exchange_;
  // Scratch space for the sequence that is being added.
  struct OwnedRoot {
    TreeNode node;
    std::int32_t worker = 0;
  };
  std::vector<OwnedRoot> roots_;
  std::vector<TreeNode> run_roots_;
  std::vector<NodeState> nodes_;
  MergeSchedule schedule_;
};

}  // namespace tributary
