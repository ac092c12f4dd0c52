// Ways to cut a new sequence over workers: each cut brings some workers to one level of attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cost/round_work.h"
#include "core/placement/pool_load.h"

namespace tributary {

/// A new sequence at the moment when it joins.
struct NewSequence {
  std::int64_t tokens = 1;
  std::int64_t leaves = 1;        // that hold them
  std::int64_t pages = 1;         // of these leaves up to the limit
  std::int64_t limit_tokens = 1;  // up to which it may grow
  std::int64_t limit_pages = 1;
  std::int64_t leaf_pages = 1;  // of one that is not the last
};

/// Cuts over 2, 4, .. workers of one node and over 2, 4, .. nodes, each as runs, in order and
/// complete. Only cuts for which all workers have the pages. `own_us`: the sequence's attention;
/// `attend_us`: the attention of each worker.
[[nodiscard]] std::vector<std::vector<LeafRun>> level_cuts(const NewSequence& sequence,
                                                           double own_us,
                                                           std::span<const double> attend_us,
                                                           const PoolLoad& load,
                                                           const RoundPrices& prices);

}  // namespace tributary
