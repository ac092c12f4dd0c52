#include "core/placement/page_cuts.h"

#include <algorithm>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"

namespace tributary {

/// Leaves are equal except the last, which takes its own slot or the rest of a worker's pages.
bool fits_empty_pool(std::int64_t limit_tokens, SpreadPolicy policy, std::int64_t workers,
                     std::int64_t pages_per_worker, std::int64_t leaf_tokens) {
  const std::int64_t pages = ceil_div(limit_tokens, std::int64_t{kPageTokens});
  if (policy == SpreadPolicy::kSingle) return pages <= pages_per_worker;
  const std::int64_t leaf_pages = leaf_tokens / kPageTokens;
  const std::int64_t slots = workers * (pages_per_worker / leaf_pages);
  const std::int64_t full = pages / leaf_pages;
  return slots > full || (slots == full && pages % leaf_pages <= pages_per_worker % leaf_pages);
}

bool page_cut_pays(const NewSequence& sequence, std::span<const LeafRun> runs, std::int32_t home,
                   const PoolLoad& load, const RoundPrices& prices) {
  if (sequence.limit_pages > load.pages_per_worker()) return true;  // it waits for ever
  const double round_us = load.step_us(prices) / prices.config().layers;
  std::int64_t held = 0;
  std::int64_t free_pages = 0;
  for (const WorkerLoad& worker : load.workers()) {
    held += worker.tokens;
    free_pages += worker.available_pages;
  }

  PoolLoad alone(static_cast<int>(load.workers().size()), prices.config(), 0);
  alone.add(runs, home, sequence.limit_tokens);
  const auto exchange_us = [&](Exchange exchange) {
    const WorkerTimes slowest = alone.round(exchange, prices).slowest;
    return slowest.queries_us + slowest.states_us + slowest.combine_us;
  };
  const double costs_us =
      std::min(exchange_us(Exchange::kAllToAll), exchange_us(Exchange::kAllGather));
  if (costs_us * static_cast<double>(held) <= round_us * static_cast<double>(sequence.tokens)) {
    return true;
  }
  const auto per_worker = static_cast<double>(load.pages_per_worker());
  const double share = static_cast<double>(sequence.limit_pages) / per_worker;
  const double unused =
      static_cast<double>(free_pages) / (per_worker * static_cast<double>(load.workers().size()));
  return costs_us <= round_us * (unused + share / 2) * share;
}

}  // namespace tributary
