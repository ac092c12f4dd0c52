// W_UK and W_UV of a pool, given by a caller in its process instead of by a model's folder.
#pragma once

#include <vector>

namespace tributary {

/// Only the home's projections head by head: such a pool does not serve `forward`.
struct GivenHeadWeights {
  int qk_nope_head_dim = 0;  // N
  int v_head_dim = 0;        // V
  /// The weights of each layer, fp32 [heads (N + V), kv_lora_rank]: per head N rows of W_UK, then V
  /// of W_UV.
  std::vector<std::vector<float>> kv_b_proj;
};

}  // namespace tributary
