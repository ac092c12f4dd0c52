// A small tier for tests: few heads and layers, leaves of a page, an H200's figures.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/hash.h"
#include "core/cost/built_in_costs.h"
#include "core/workload/trace.h"
#include "deploy/predict/simulate/tier_simulation.h"

namespace tributary::test {

inline CostModelConfig small_cost(int leaf_tokens = 64) {
  return {.costs = find_built_in_costs("h200").costs,
          .attention = {.heads = 16,
                        .kv_lora_rank = 512,
                        .qk_rope_head_dim = 64,
                        .row_format = RowFormat::kBF16,
                        .query_dtype = DType::kBF16,
                        .softmax_scale = 1},
          .projection = {},
          .layers = 3,
          .leaf_tokens = leaf_tokens,
          .workers_per_node = 2};
}

inline SimulatedPoolConfig small_pool(int workers, std::int32_t pages = 2000) {
  return {.workers = workers,
          .pages_per_worker = pages,
          .cost = small_cost(),
          .exchange = Exchange::kAuto,
          .commit_tokens = kMaxStepTokens,
          .sequencer = {.max_step_ms = 0, .move_bytes_per_s = 0}};
}

/// Uniform draws in [0, 1), the same everywhere.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : key_(mix64(seed + kGoldenGamma)) {}
  double uniform() {
    return static_cast<double>(mix64(key_ + ++counter_ * kGoldenGamma) >> 11) * 0x1p-53;
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(uniform() * static_cast<double>(high - low + 1));
  }

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

inline TraceRequest request_of(double timestamp_ms, std::int64_t input, std::int64_t output) {
  return {
      .timestamp_ms = timestamp_ms, .input_length = input, .output_length = output, .hash_ids = {}};
}

/// Lengths of one to twenty leaves, five requests a second.
inline std::vector<TraceRequest> small_trace(int requests, std::uint64_t seed = 1) {
  Draws draws(seed);
  std::vector<TraceRequest> trace;
  for (int i = 0; i < requests; ++i) {
    trace.push_back(request_of(200.0 * i, draws.between(1, 1280), draws.between(1, 200)));
  }
  return trace;
}

}  // namespace tributary::test
