// Ownership: the home of a sequence and the owner of each of its leaves.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "core/cost/round_work.h"
#include "core/placement/level_cuts.h"
#include "core/placement/packing.h"
#include "core/placement/pool_load.h"
#include "core/placement/spread_policy.h"

namespace tributary {

struct PlacementConfig {
  int workers = 1;  // >= 1
  /// The cost model of the pool's rounds, which `auto` makes short. Its leaves are those of the
  /// pool.
  CostModelConfig model = default_cost_model();
};

/// The choice of `auto` for a sequence for which no worker has all pages.
enum class PageCut {
  kIfItPays,  // it waits for a whole place where page_cut_pays() says so
  kAlways,    // it has waited long enough
};

struct Assignment {
  /// A worker that owns a leaf of the prompt.
  std::int32_t home = 0;
  /// Owner of leaf i, for every leaf up to the sequence's limit; growth beyond the prompt is
  /// reserved there.
  std::vector<std::int32_t> leaf_owner;
};

/// Decisions depend on the arguments alone: the same calls give the same owners everywhere.
class Placement {
 public:
  /// `max_step_us` bounds a predicted step: where a step with a new sequence would exceed it,
  /// `auto` cuts the sequence if a cut keeps within it. 0: no bound. Throws kInvalidArgument for a
  /// value outside its range.
  explicit Placement(const PlacementConfig& config, double max_step_us = 0);

  /// The load of an empty pool; the caller keeps it up to date for the calls below.
  [[nodiscard]] PoolLoad empty_load(std::int64_t pages_per_worker) const;

  /// Places a new sequence of `prompt_tokens` that may grow to `limit_tokens` (1 <= prompt_tokens
  /// <= limit_tokens). Pages are whole: a worker needs ceil(tokens / kPageTokens) for each of its
  /// leaves, the last clipped at the limit. Returns no value if the workers lack available pages
  /// now: for `single`, if no worker holds all; otherwise, if no assignment of whole leaves to
  /// workers exists; for `auto`, also if `page_cut` makes it wait for a worker with all pages. In
  /// an empty pool nothing waits. Throws kInvalidArgument for lengths out of order or a load for
  /// another number of workers than config.workers.
  [[nodiscard]] std::optional<Assignment> place(std::int64_t prompt_tokens,
                                                std::int64_t limit_tokens, SpreadPolicy policy,
                                                const PoolLoad& load,
                                                PageCut page_cut = PageCut::kIfItPays) const;

  /// Owner for the leaf that a sequence is about to open: `reserved_owner`, where its pages are
  /// promised, or a worker with `leaf_pages` available pages that makes rounds shorter. `auto`
  /// chooses a worker without leaves of the sequence only if the load is uneven enough for a cut.
  /// `spread_tokens[w]`: tokens of this sequence on worker w. Throws kInvalidArgument as above.
  [[nodiscard]] std::int32_t place_leaf(std::int32_t reserved_owner, std::int64_t leaf_pages,
                                        std::int32_t home,
                                        std::span<const std::int64_t> spread_tokens,
                                        SpreadPolicy policy, const PoolLoad& load) const;

  [[nodiscard]] const RoundPrices& prices() const noexcept { return prices_; }

 private:
  [[nodiscard]] std::optional<Assignment> place_auto(const NewSequence& sequence, Packing& packing,
                                                     const PoolLoad& load, PageCut page_cut) const;
  [[nodiscard]] double attend_with_leaf_us(const WorkerLoad& worker, std::int64_t rows) const;
  [[nodiscard]] bool leaf_may_cut(std::int32_t home, std::int64_t rows, const PoolLoad& load) const;
  [[nodiscard]] double leaf_step_us(std::int32_t worker, std::int32_t home, bool held,
                                    std::int64_t rows, const PoolLoad& load,
                                    const RoundTimes& now) const;
  void check_load(const PoolLoad& load) const;

  PlacementConfig config_;
  RoundPrices prices_;
  double max_step_us_;
};

}  // namespace tributary
