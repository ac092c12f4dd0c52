// The rounds of a pool, added up to the steps of its only client.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/pool/pool_worker.h"
#include "deploy/app/replay/replay_report.h"

namespace tributary {

class RoundTally {
 public:
  /// On the pool's thread, see WorkerEvents::round.
  void add(const RoundReport& round, std::size_t items, std::int64_t pages_used);
  /// On the client's: the rounds since the last call were a step's.
  void end_step();

  [[nodiscard]] RoundFigures figures();

 private:
  std::mutex mutex_;  // guards what follows
  // These are of the step that runs.
  PhaseTimes phase_us_{};
  std::vector<std::int64_t> worker_rows_;
  double spread_sum_ = 0;  // over items
  std::size_t items_ = 0;
  // These are of all steps.
  std::array<std::vector<double>, kPhases> step_phase_us_;
  double balance_sum_ = 0;
  double step_spread_sum_ = 0;
  RoundFigures figures_;
};

}  // namespace tributary
