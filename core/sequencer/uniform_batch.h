// The routing of a step of equal sequences on an otherwise empty pool, as the pool itself would
// place and route it: the input of a prediction.
#pragma once

#include <cstdint>
#include <span>

#include "core/cache/page_pool.h"
#include "core/placement/placement.h"
#include "core/plan/plan.h"
#include "core/sequencer/sequencer.h"

namespace tributary {

struct UniformBatchConfig {
  int workers = 1;
  int batch = 1;
  std::int64_t context = 4096;  // rows of each sequence, the new ones of the step included
  std::int32_t tokens = 1;      // new ones of each
  SpreadPolicy spread = SpreadPolicy::kAuto;
  CostModelConfig model = default_cost_model();  // its leaves are those of the batch
};

class UniformBatch {
 public:
  /// Throws kInvalidArgument for a batch of nothing, or a context without room for its new tokens;
  /// kTooLarge for more pages on a worker than a pool can number.
  explicit UniformBatch(const UniformBatchConfig& config);
  UniformBatch(const UniformBatch&) = delete;  // the routing points into the table
  UniformBatch& operator=(const UniformBatch&) = delete;

  [[nodiscard]] const Routing& routing() const noexcept { return routing_; }
  /// Pages in use on the worker that has most.
  [[nodiscard]] std::int64_t busiest_pages() const;

 private:
  Sequencer sequencer_;
  Routing routing_;
};

}  // namespace tributary
