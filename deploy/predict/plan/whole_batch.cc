#include "deploy/predict/plan/whole_batch.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/placement/move_planner.h"
#include "core/sequencer/sequencer.h"

namespace tributary {
namespace {

/// The time for which moves may expect their gain to last.
constexpr std::int64_t kDecoded = 4000;
/// After the last admission; a plan that finds nothing ends them earlier.
constexpr int kMovePlans = 12;

/// Spreads every sequence evenly over `spread` neighbours; each of them in turn is its first and
/// its home.
double alike_us(const RoundPrices& prices, int workers, int batch, std::int64_t context,
                int spread) {
  const CostModelConfig& model = prices.config();
  PoolLoad load(workers, model, 0);
  const std::int64_t leaves = ceil_div(context, std::int64_t{model.leaf_tokens});
  const std::int64_t parts = std::min<std::int64_t>(spread, leaves);
  for (int i = 0; i < batch; ++i) {
    const int group = static_cast<int>(std::int64_t{i} * spread % workers);
    const std::int64_t turn = std::int64_t{i} * spread / workers % parts;
    std::vector<LeafRun> runs;
    for (std::int64_t p = 0; p < parts; ++p) {
      // For each sequence of a group, the parts with one leaf more are on other workers.
      const auto worker = static_cast<std::int32_t>((group + (p + turn) % parts) % workers);
      runs.push_back({worker, leaves * p / parts, leaves * (p + 1) / parts});
    }
    load.add(runs, runs.front().worker, context);
  }
  return load.step_us(prices);
}

}  // namespace

WholeBatch plan_whole_batch(const CostModelConfig& model, int workers, int batch,
                            std::int64_t context) {
  if (batch < 1 || context < 1) {
    fail(ErrorCode::kInvalidArgument,
         "a batch of {} sequences of {} rows, expected at least 1 each", batch, context);
  }
  const std::int64_t pages = batch * ceil_div(context + kDecoded, std::int64_t{kPageTokens});
  if (pages > std::numeric_limits<std::int32_t>::max()) {
    fail(ErrorCode::kTooLarge, "{} sequences of {} tokens are more than 2^31 - 1 pages", batch,
         context + kDecoded);
  }
  WholeBatch whole;
  const RoundPrices prices(model, workers);
  whole.known_us = std::numeric_limits<double>::infinity();
  for (int spread = 1;; spread = std::min(2 * spread, workers)) {
    const double us = alike_us(prices, workers, batch, context, spread);
    if (us < whole.known_us) {
      whole.known_us = us;
      whole.known_spread = spread;
    }
    if (spread == workers) break;
  }

  Sequencer sequencer({.placement = {.workers = workers, .model = model},
                       .pages_per_worker = static_cast<std::int32_t>(pages),
                       .incarnation = 1});
  for (int i = 0; i < batch; ++i) {
    const auto id = sequencer.sequences().admit({.prompt_tokens = context,
                                                 .max_new_tokens = kDecoded,
                                                 .spread = SpreadPolicy::kAuto,
                                                 .idempotency_key = {}});
    if (id) sequencer.sequences().prompt_arrived(*id);
  }
  whole.admitted_us = sequencer.ledger().predicted_step_us();
  for (int plan = 0; plan < kMovePlans; ++plan) {
    const MovePlan moves = plan_moves({}, sequencer.moves().movable(), sequencer.ledger().load(),
                                      sequencer.ledger().placement().prices());
    if (moves.empty()) break;
    for (const LeafMove& move : moves) {
      sequencer.moves().begin(move);
      (void)sequencer.moves().order_copies(std::numeric_limits<std::int64_t>::max());
      (void)sequencer.take_order();
      sequencer.order_ended(true);
    }
  }
  whole.moved_us = sequencer.ledger().predicted_step_us();
  whole.moves = static_cast<std::int64_t>(sequencer.moves().totals().completed);
  whole.moved_bytes = static_cast<double>(sequencer.moves().totals().page_copies) * kPageTokens *
                      static_cast<double>(model.attention.row_bytes());
  return whole;
}

}  // namespace tributary
