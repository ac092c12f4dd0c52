// The workers of a pool that are not lost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/cache/sequence_table.h"
#include "core/placement/page_cuts.h"
#include "core/sequencer/pool_ledger.h"

namespace tributary {

[[nodiscard]] inline int members(const PoolLedger& ledger) {
  int count = 0;
  for (std::int32_t w = 0; std::cmp_less(w, ledger.pools().size()); ++w) {
    count += ledger.pages().lost(w) ? 0 : 1;
  }
  return count;
}

/// Whether they could hold a running sequence if they were empty.
[[nodiscard]] inline bool fits_members(const PoolLedger& ledger, const Sequence& s) {
  return fits_empty_pool(s.limit_tokens, ledger.running().at(s.id).spread, members(ledger),
                         ledger.pools().front().total(), ledger.table().leaf_tokens());
}

/// Whether a sequence waits for room that will come: those that need another worker do not count.
[[nodiscard]] inline bool waits_for_room(const PoolLedger& ledger) {
  return std::ranges::any_of(
      ledger.waiting(), [&](SequenceId id) { return fits_members(ledger, ledger.table().at(id)); });
}

}  // namespace tributary
