// The report of `tributary plan` on a batch as a whole: its best placement if all of it were known
// before, and the result of a pool that admits one by one and moves leaves afterwards.
#pragma once

#include <cstdint>

#include "core/cost/round_work.h"

namespace tributary {

struct WholeBatch {
  /// The shortest predicted step of the placements that cut every sequence alike, over 1, 2, 4, ..
  /// or all workers, in groups of neighbours.
  double known_us = 0;
  int known_spread = 1;    // workers of a sequence
  double admitted_us = 0;  // spread `auto`, one by one
  double moved_us = 0;     // and moves after the last one
  std::int64_t moves = 0;
  double moved_bytes = 0;
};

/// Predictions for one new token of each of `batch` equal sequences of `context` rows, which decode
/// 4,000 more; pages are no bound. Throws kTooLarge for more pages than a pool can number,
/// kInvalidArgument for fewer than one sequence or row.
[[nodiscard]] WholeBatch plan_whole_batch(const CostModelConfig& model, int workers, int batch,
                                          std::int64_t context);

}  // namespace tributary
