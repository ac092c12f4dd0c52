// Which leaves to move off a worker that is to be emptied.
#pragma once

#include <cstdint>
#include <span>

#include "core/cache/sequence_table.h"
#include "core/cost/round_work.h"
#include "core/placement/move_planner.h"
#include "core/placement/pool_load.h"

namespace tributary {

/// Moves of leaves off `worker`, a bounded number: asked again when they are done, until it is
/// empty. Each run of full leaves goes whole where it can, to the home, the owner of a neighbouring
/// leaf or one of the least busy workers, whichever makes the step shortest; in halves where no
/// worker has the pages. Then the newest leaf, with what is reserved for it. What fits nowhere
/// stays. `movable` as for plan_moves(); `load` has no pages on workers that get none. Depends on
/// the arguments alone.
[[nodiscard]] MovePlan plan_drain(std::int32_t worker, std::span<const Sequence* const> movable,
                                  const PoolLoad& load, const RoundPrices& prices);

}  // namespace tributary
