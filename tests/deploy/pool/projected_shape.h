// Pools that project at their leaves, for tests: a shape and its weights.
#pragma once

#include <memory>
#include <vector>

#include "core/pool/pool_worker.h"

namespace tributary {

/// A shape that projects at its leaves, of odd sizes.
[[nodiscard]] AttentionShape at_leaves(AttentionShape shape);
/// The weights of such a shape's layer: W_UK [heads, kv_lora_rank, qk_nope_head_dim] and W_UV
/// [heads, v_head_dim, kv_lora_rank].
struct PoolWeights {
  std::vector<float> w_uk, w_uv;
};
[[nodiscard]] PoolWeights pool_weights(const AttentionShape& shape, int layer);

/// Makes the weights of all layers, and has the worker use them; none unless its attention projects
/// at the leaves. The result outlives the worker.
[[nodiscard]] std::vector<std::unique_ptr<Weight>> make_leaf_weights(WorkerConfig& config,
                                                                     Backend& backend);

}  // namespace tributary
