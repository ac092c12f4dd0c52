#include "core/sequencer/uniform_batch.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"

namespace tributary {
namespace {

/// Pages for everything on one worker: placement is asked what is best, not what just fits.
std::int32_t pages_of(const UniformBatchConfig& config) {
  if (config.batch < 1 || config.tokens < 1 || config.context <= config.tokens) {
    fail(ErrorCode::kInvalidArgument,
         "a batch of {} with {} new tokens and a context of {}: expected at least one sequence "
         "with a token before its new ones",
         config.batch, config.tokens, config.context);
  }
  const std::int64_t pages = ceil_div(config.context, kPageTokens);
  if (pages > std::numeric_limits<std::int32_t>::max() / config.batch) {
    fail(ErrorCode::kTooLarge, "{} sequences of {} tokens are more than 2^31 - 1 pages",
         config.batch, config.context);
  }
  return static_cast<std::int32_t>(pages * config.batch);
}

}  // namespace

UniformBatch::UniformBatch(const UniformBatchConfig& config)
    : sequencer_({.placement = {.workers = config.workers, .model = config.model},
                  .pages_per_worker = pages_of(config),
                  .incarnation = 1}) {
  std::vector<StepItem> step;
  for (int i = 0; i < config.batch; ++i) {
    const auto id = sequencer_.sequences().admit({.prompt_tokens = config.context - config.tokens,
                                                  .max_new_tokens = config.tokens,
                                                  .spread = config.spread},
                                                 {.tag = i});
    step.push_back(next_item(sequencer_.ledger().table().at(id.value()), config.tokens));
  }
  sequencer_.steps().open(step);
  build_routing(sequencer_.ledger().table(), step, config.workers, routing_);
}

std::int64_t UniformBatch::busiest_pages() const {
  std::int64_t most = 0;
  for (const PagePool& pool : sequencer_.ledger().pools()) {
    most = std::max<std::int64_t>(most, pool.used());
  }
  return most;
}

}  // namespace tributary
