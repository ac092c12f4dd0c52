// Ways to cut a new sequence over workers: each brings some of them to one level of attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cost/pool_load.h"
#include "core/cost/round_work.h"

namespace tributary {

/// A new sequence, as it joins.
struct NewSequence {
  std::int64_t tokens = 1;
  std::int64_t leaves = 1;        // that hold them
  std::int64_t pages = 1;         // of these leaves up to the limit
  std::int64_t limit_tokens = 1;  // up to which it may grow
  std::int64_t limit_pages = 1;
  std::int64_t leaf_pages = 1;  // of one that is not the last
};

/// Runs, each in order and complete, over 2, 4, .. workers of one node and over 2, 4, .. nodes;
/// only such for which all workers have the pages. `own_us`: the sequence's attention, `attend_us`:
/// what each worker has.
[[nodiscard]] std::vector<std::vector<LeafRun>> level_cuts(const NewSequence& sequence,
                                                           double own_us,
                                                           std::span<const double> attend_us,
                                                           const PoolLoad& load,
                                                           const RoundPrices& prices);

}  // namespace tributary
