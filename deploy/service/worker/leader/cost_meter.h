// Compares the rounds of a pool with the predictions of its constants.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/placement/pool_load.h"
#include "core/pool/pool_worker.h"
#include "deploy/service/protocol/pool_metrics.h"

namespace tributary {

class CostMeter {
 public:
  /// The weight of a new round: some hundred rounds outweigh all earlier ones.
  static constexpr double kWeight = 1.0 / 64;
  /// Shorter phases, in microseconds, measure the clock and the scheduler.
  static constexpr double kShortestUs = 5;
  /// The bounds of a factor: a single stalled round does not dominate it.
  static constexpr double kLeast = 0.25;
  static constexpr double kMost = 4;

  /// `model`: with the constants that placement uses.
  CostMeter(const CostModelConfig& model, int workers);

  /// Counts a round of `items` items of one layer and `tokens` new tokens. It counts only if the
  /// items were all sequences of `load`, with one token each: the time of such a round is predicted
  /// without its plan.
  void round_ended(const RoundReport& report, std::size_t items, std::int64_t tokens,
                   const PoolLoad& load);

  /// Moving averages of measured over predicted time, taken in the logarithm, since times scatter
  /// upwards.
  [[nodiscard]] const CostFactors& factors() const noexcept { return factors_; }

 private:
  RoundPrices prices_;
  CostFactors factors_ = PoolMetrics{}.cost_factors;
};

}  // namespace tributary
