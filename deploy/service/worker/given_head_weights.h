// W_UK and W_UV of a pool that a caller in its process gives, instead of a model's folder.
#pragma once

#include <vector>

namespace tributary {

/// The home's projections head by head, and no more: such a pool serves no `forward`.
struct GivenHeadWeights {
  int qk_nope_head_dim = 0;  // N
  int v_head_dim = 0;        // V
  /// The weights of each layer, fp32 [heads (N + V), kv_lora_rank]: per head N rows of W_UK, then V
  /// of W_UV.
  std::vector<std::vector<float>> kv_b_proj;
};

}  // namespace tributary
