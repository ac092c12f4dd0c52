// The counters of a pool's leader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/deadline.h"
#include "core/pool/pool_worker.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/protocol/pool_metrics.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

class PoolMeter {
 public:
  /// Excludes the workers' own counts.
  PoolMetrics totals;

  /// Counts a round of `items` items that has ended now. `canary_bound`: a canary's excess above it
  /// is a failure.
  void round_ended(const RoundReport& report, std::size_t items, double seconds,
                   double canary_bound, Time now);
  /// Fills in all totals, including those of the workers' last beats, and each worker's attention
  /// work.
  void fill(Heartbeat& heartbeat, const std::vector<wire::Beat>& beats, Time now) const;

 private:
  /// Rows of the rounds in a quarter of a minute from `begin` on.
  struct Rows {
    Time begin{};
    double busiest = 0;  // sums over the rounds
    double mean = 0;
  };
  /// Of the last and the present quarter of a minute.
  [[nodiscard]] double balance(Time now) const;

  struct Attended {
    std::int64_t rows = 0;
    double seconds = 0;
  };
  std::vector<Attended> attended_;  // by rank
  Rows last_, present_;
};

}  // namespace tributary
