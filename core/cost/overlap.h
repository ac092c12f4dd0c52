// What a round could gain at best if the exchange of one half of its items ran under the attention
// of the other half.
#pragma once

#include <span>

#include "core/cost/pool_load.h"
#include "core/cost/round_work.h"

namespace tributary {

/// Predicted times of a step.
struct OverlapGain {
  double step_us = 0;  // as rounds are, with the exchange that is shorter
  /// Of the best split that was found; may be longer. step_us where there is nothing to overlap.
  double halves_us = 0;
  /// As if attention hid all of the exchange that it is long enough for, and halves cost nothing
  /// more than the whole: what no schedule comes below.
  double free_us = 0;
};

/// From two splits on, every second sequence (of those that are exchanged and of the others) and
/// the exchanged ones from the others, each half first, single sequences go to the other half as
/// long as that makes the round shorter (Halves).
[[nodiscard]] OverlapGain predict_overlap(const CostModelConfig& config,
                                          std::span<const PlacedSequence> sequences, int workers);

}  // namespace tributary
