#include "tests/deploy/pool/projected_shape.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>

namespace tributary {

AttentionShape at_leaves(AttentionShape shape) {
  shape.project_at = ProjectAt::kLeaves;
  shape.qk_nope_head_dim = 11;
  shape.v_head_dim = 13;
  return shape;
}

PoolWeights pool_weights(const AttentionShape& shape, int layer) {
  const auto random = [](std::int64_t count, int cols, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal(0, 1 / std::sqrt(static_cast<double>(cols)));
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(normal(generator));
    return values;
  };
  const auto seed = static_cast<unsigned>(2 * layer);
  const std::int64_t per_head = std::int64_t{shape.heads} * shape.kv_lora_rank;
  return {random(per_head * shape.qk_nope_head_dim, shape.qk_nope_head_dim, seed),
          random(per_head * shape.v_head_dim, shape.kv_lora_rank, seed + 1)};
}

std::vector<std::unique_ptr<Weight>> make_leaf_weights(WorkerConfig& config, Backend& backend) {
  const AttentionShape& a = config.attention;
  std::vector<std::unique_ptr<Weight>> owned;
  if (!a.projects_leaves()) return owned;
  const auto make = [&](const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
    owned.push_back(backend.make_weight({.data = values.data(),
                                         .batch = a.heads,
                                         .rows = rows,
                                         .cols = cols,
                                         .batch_stride = rows * cols,
                                         .row_stride = cols}));
    return owned.back().get();
  };
  for (int layer = 0; layer < config.layers; ++layer) {
    const PoolWeights weights = pool_weights(a, layer);
    const Weight* w_uk = make(weights.w_uk, a.kv_lora_rank, a.qk_nope_head_dim);
    config.leaf_weights.push_back({w_uk, make(weights.w_uv, a.v_head_dim, a.kv_lora_rank)});
  }
  return owned;
}

}  // namespace tributary
