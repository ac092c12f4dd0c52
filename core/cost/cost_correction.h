// What a pool learns of its own speed while it runs: factors on the constants that it began with.
#pragma once

#include <cstdint>

#include "core/cost/machine_costs.h"
#include "core/cost/round_work.h"

namespace tributary {

/// By what the constants of a kind of work are multiplied.
struct CostFactors {
  double attend = 1;
  double exchange = 1;  // messages and bytes, in a node and between nodes
  double combine = 1;   // merges

  friend bool operator==(const CostFactors&, const CostFactors&) = default;
};

/// Moves towards measured over predicted time, in the logarithm, since times scatter upwards. The
/// prediction is always that of the uncorrected constants, so what is learnt does not feed back.
/// Depends on the sequence of calls alone. A factor stays within kLeast .. kMost: further off, the
/// constants are of another machine, and measuring them anew helps more than following a fault.
class CostCorrection {
 public:
  static constexpr double kLeast = 0.25;
  static constexpr double kMost = 4;
  /// Of a new observation: some hundred rounds outweigh what came before.
  static constexpr double kWeight = 1.0 / 64;
  /// Shorter phases, in microseconds, are the clock's and the scheduler's.
  static constexpr double kShortestUs = 5;

  /// `start`: what an earlier leader had learnt; brought into the bounds.
  explicit CostCorrection(const CostFactors& start = {});

  /// The slowest worker's phases of one round, by the uncorrected constants and as they were.
  /// Phases that either side has too short, and times that are not finite, count for nothing.
  void observe(const WorkerTimes& predicted, const WorkerTimes& measured);

  [[nodiscard]] const CostFactors& factors() const noexcept { return factors_; }
  /// Rounds that counted for something.
  [[nodiscard]] std::uint64_t observed() const noexcept { return observed_; }
  [[nodiscard]] MachineCosts corrected(MachineCosts costs) const;

 private:
  CostFactors factors_;
  std::uint64_t observed_ = 0;
};

}  // namespace tributary
