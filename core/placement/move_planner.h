// Which leaves to move next: a descent of the predicted time of a step, the one that placement
// makes short.
#pragma once

#include <span>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/cost/round_work.h"
#include "core/placement/leaf_move.h"
#include "core/placement/pool_load.h"

namespace tributary {

struct MovePlannerConfig {
  /// Moves are worth their copies if they gain this many times as much. More than 1: sequences may
  /// end early, and a pool at rest must not shuffle leaves for what the prediction does not know.
  double hysteresis = 4;
  /// The least share of a step that moves have to gain; those that cut what was less cut, like
  /// placement when it cuts: others that come later may fill the gap, and the cut stays.
  double least_gain = 0.005;
  double least_cut_gain = 0.05;
};

/// Moves to make, one after the other.
using MovePlan = std::vector<LeafMove>;

/// The plan that gains most less its copies, of those that gain enough; empty if there is none.
/// Depends on the arguments alone.
///
/// The gain is what a step becomes shorter by, in each until the moved sequences end. When one ends
/// is unknown: between now and its limit anywhere, so half of what is left. A step waits for the
/// slowest worker and pays for an exchange as long as one sequence needs it, so one move alone
/// often gains nothing. Chains of moves are tried, and a plan is the best beginning of one:
///
/// - cut sequences become whole at their homes, those with the shortest copies first, so that the
///   exchange ends with the last one;
/// - while the busiest worker exceeds the others by what placement would cut for, it gives leaves
///   away, then the one that is the busiest then: to their home, to owners of neighbouring leaves,
///   and to the least busy workers;
/// - where it does, too, the longest sequence goes evenly over its home's node, or over the pool.
///
/// The newest leaf, which grows, stays where it is. `movable`: candidates, in a fixed order, with
/// all their leaves in `load`, which has all running sequences. Takes a walk over `movable` for
/// each link of the second chain, of which there are 8, and at most 700 predictions.
[[nodiscard]] MovePlan plan_moves(const MovePlannerConfig& config,
                                  std::span<const Sequence* const> movable, const PoolLoad& load,
                                  const RoundPrices& prices);

}  // namespace tributary
