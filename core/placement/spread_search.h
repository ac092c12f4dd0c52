// Decides whether a new sequence is kept whole or cut, and where. It makes the round that the
// sequence joins short, without making later rounds long when the pool fills.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/cost/round_work.h"
#include "core/placement/level_cuts.h"
#include "core/placement/pool_load.h"

namespace tributary {

struct Spread {
  std::vector<LeafRun> runs;  // in order and complete
  std::int32_t home = 0;
};

/// The least loaded worker with `pages` available pages: the one with which the slowest attention
/// and projections grow least; of several, the one that has least of both. -1: no worker has the
/// pages.
[[nodiscard]] std::int32_t least_loaded(const NewSequence& sequence, std::int64_t pages,
                                        const PoolLoad& load, const RoundPrices& prices);

/// The owner that receives least as a home, for complete runs. Of equal owners the one with the
/// newest leaf, which grows and does not move, so that the sequence can become whole there.
[[nodiscard]] std::int32_t cheapest_home(std::span<const LeafRun> runs, std::int64_t leaves,
                                         const PoolLoad& load, const RoundPrices& prices);

/// Whether the busiest worker's attention exceeds the mean, `sum_us` over `workers`, by more than
/// later sequences fill.
[[nodiscard]] bool gap_pays(double busiest_us, double sum_us, std::size_t workers);

/// The time by which a worker exceeds the level of the pool, as a mean over the time of a sequence
/// that stays there. The worker's other load, `others_us` of `others` sequences, ends meanwhile at
/// an even pace and is not replaced while the worker is above the level. One of these sequences is
/// assumed to stay: few have no pace.
[[nodiscard]] double lasting_excess_us(double excess_us, double others_us, std::int64_t others);

/// Returns no value if no worker has the pages and none of the examined cuts has them; other cuts
/// may. `max_step_us`: a bound on the step of all sequences, 0 for none. A spread that keeps the
/// bound precedes a better one that does not; if none keeps it, the bound is ignored.
[[nodiscard]] std::optional<Spread> find_spread(const NewSequence& sequence, const PoolLoad& load,
                                                const RoundPrices& prices, double max_step_us);

}  // namespace tributary
