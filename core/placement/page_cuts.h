// Decisions on sequences for which no worker has the pages: whether one could ever be whole, and
// whether it is cut now or waits for a whole place.
#pragma once

#include <cstdint>
#include <span>

#include "core/cost/round_work.h"
#include "core/placement/level_cuts.h"
#include "core/placement/pool_load.h"
#include "core/placement/spread_policy.h"

namespace tributary {

/// Whether an empty pool has an assignment of whole leaves for `limit_tokens`, at least one. Does
/// not depend on any constant of a machine.
[[nodiscard]] bool fits_empty_pool(std::int64_t limit_tokens, SpreadPolicy policy,
                                   std::int64_t workers, std::int64_t pages_per_worker,
                                   std::int64_t leaf_tokens);

/// Whether it is better to cut a sequence into `runs`, its growth included, than to let it wait for
/// a worker with all its pages. A cut for pages alone makes every round longer by an exchange, for
/// as long as the sequence runs. It therefore pays only if one of these holds:
///
/// - The exchange is a smaller share of a round than the sequence is of the pool's work. The
///   exchange is priced as if nobody else exchanged: otherwise sequences that are cut because
///   others are would keep each other so.
/// - Waiting costs more. Where nobody overtakes it, the free share f of the pool's pages stays
///   unused, and workers run empty until one has the share x that is needed: for x of a sequence's
///   time the pool lacks f, and half of x on average. (f + x / 2) x against the exchange's share.
[[nodiscard]] bool page_cut_pays(const NewSequence& sequence, std::span<const LeafRun> runs,
                                 std::int32_t home, const PoolLoad& load,
                                 const RoundPrices& prices);

}  // namespace tributary
