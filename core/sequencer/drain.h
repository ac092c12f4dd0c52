// What leaves a worker that is being emptied without a copy: homes, and what is reserved there for
// leaves without rows. Its rows are the affair of MoveSchedule.
#pragma once

#include <cstdint>
#include <functional>

#include "core/cache/sequence_table.h"
#include "core/sequencer/pool_ledger.h"

namespace tributary {

/// Chooses a worker for `pages` that are reserved on one that gets no more: the home, or the worker
/// with the most pages; `reserved` where nobody has them.
[[nodiscard]] std::int32_t beside_drained(const PoolLedger& ledger, std::int32_t reserved,
                                          std::int32_t home, std::int64_t pages);

/// Chooses a home for a sequence that loses its own: the owner of its newest rows, where that gets
/// more, or the worker that is home to the fewest; the old one where nobody gets more.
[[nodiscard]] std::int32_t new_home(const PoolLedger& ledger, const Sequence& s);

class Drain {
 public:
  /// The ledger outlives it.
  explicit Drain(PoolLedger& ledger) : ledger_(ledger) {}

  /// Gives sequences another home, unless `is_busy`: a request of theirs waits at the one they
  /// have, or runs there. Gives leaves without rows another owner where there is room. Returns
  /// whether there was anything; some hundreds at a time, since an order holds them.
  [[nodiscard]] bool give_away(const std::function<bool(SequenceId)>& is_busy);

 private:
  [[nodiscard]] bool give_away(const Sequence& s, const std::function<bool(SequenceId)>& is_busy);

  PoolLedger& ledger_;
};

}  // namespace tributary
