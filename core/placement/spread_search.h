// Whether a new sequence is kept whole or cut, and where: what makes the round short that it joins,
// and does not make those long that come when the pool fills.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/cost/pool_load.h"
#include "core/cost/round_work.h"
#include "core/placement/level_cuts.h"

namespace tributary {

struct Spread {
  std::vector<LeafRun> runs;  // in order and complete
  std::int32_t home = 0;
};

/// The least loaded worker with `pages` available pages: the one with which the slowest attention
/// and projections grow least, then the one that has least of both. -1: no worker has the pages.
[[nodiscard]] std::int32_t least_loaded(const NewSequence& sequence, std::int64_t pages,
                                        const PoolLoad& load, const RoundPrices& prices);

/// The owner that receives least as a home, of runs that are complete; of equal ones the one of the
/// newest leaf, which grows and does not move, so that the sequence can become whole there.
[[nodiscard]] std::int32_t cheapest_home(std::span<const LeafRun> runs, std::int64_t leaves,
                                         const PoolLoad& load, const RoundPrices& prices);

/// Whether the busiest worker's attention exceeds that of the others, of which there are so many
/// with that sum in all, by more than what comes next fills.
[[nodiscard]] bool gap_pays(double busiest_us, double sum_us, std::size_t workers);

/// The time by which a worker exceeds the level of the pool, as a mean over the time of a sequence
/// that stays there. The worker's other load, `others_us` of `others` sequences, ends meanwhile at
/// an even pace and is not replaced while the worker is above the level. One of these sequences is
/// assumed to stay: few have no pace.
[[nodiscard]] double lasting_excess_us(double excess_us, double others_us, std::int64_t others);

/// No value: neither one worker has the pages nor any of the cuts that are looked at; there may be
/// others. `max_step_us`: a bound on the step of all, 0 for none: what keeps it goes before what is
/// otherwise best; where nothing does, it asks for nothing.
[[nodiscard]] std::optional<Spread> find_spread(const NewSequence& sequence, const PoolLoad& load,
                                                const RoundPrices& prices, double max_step_us);

}  // namespace tributary
