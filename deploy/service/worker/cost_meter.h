// Compares the rounds of a pool with what its constants predict of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cost/cost_correction.h"
#include "core/cost/pool_load.h"
#include "core/pool/pool_worker.h"

namespace tributary {

class CostMeter {
 public:
  /// `model`: with the constants that the pool began with.
  CostMeter(const CostModelConfig& model, int workers);

  /// A round of `items` items of one layer, `tokens` new tokens in all, has ended. It counts if
  /// they were all sequences of `load`, with one token each: what such a round takes is predicted
  /// without its plan. Returns whether enough rounds have counted since the last time to place by
  /// corrected constants.
  bool round_ended(const RoundReport& report, std::size_t items, std::int64_t tokens,
                   const PoolLoad& load);

  /// Begins with what an earlier leader had learned. False, and no effect, where that changes
  /// nothing or rounds have counted: what this pool sees itself is newer.
  bool take_over(const CostFactors& learned);

  [[nodiscard]] const CostFactors& factors() const noexcept { return correction_.factors(); }
  [[nodiscard]] MachineCosts costs() const { return correction_.corrected(prices_.config().costs); }

 private:
  RoundPrices prices_;
  CostCorrection correction_;
};

}  // namespace tributary
