// W_UK and W_UV of one layer, applied around its attention: the projections head by head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/interface/backend.h"
#include "core/layer/weight_views.h"

namespace tributary {

/// Letters as in core/layer/mla_layer.h. Pointers are memory of the backend that has the weights.
class HeadProjection {
 public:
  /// `kv_b_proj` has that shape and is not needed afterwards; `scales` as for matrix().
  HeadProjection(Backend& backend, const KvBShape& shape, const std::vector<float>& kv_b_proj,
                 const std::vector<float>& scales = {});

  /// queries [tokens, H, N + R] -> absorbed [tokens, H, C + R]: W_UK on the first part, the rotated
  /// part unchanged.
  void add_absorbed(std::int64_t tokens, const float* queries, float* absorbed,
                    std::vector<Call>& calls) const;
  /// Merged states, records of StateShape{H, C} -> records of StateShape{H, V}: W_UV on the values,
  /// lse unchanged.
  void add_projected(std::int64_t tokens, const float* states, float* projected,
                     std::vector<Call>& calls) const;

  /// W_UK on queries [tokens, H, N + R]: the first C values of absorbed [tokens, H, C + R].
  [[nodiscard]] GemmArgs absorb(std::int64_t tokens, const float* queries,
                                std::int64_t query_token_stride, float* absorbed) const;
  /// W_UV on merged states, records of StateShape{H, C}: values [tokens, H, V].
  [[nodiscard]] GemmArgs values(std::int64_t tokens, const float* states, float* values,
                                std::int64_t value_token_stride) const;

 private:
  KvBShape shape_;
  std::unique_ptr<Weight> w_uk_;  // batch H: [C, N], the transpose of kv_b_proj's rows
  std::unique_ptr<Weight> w_uv_;  // batch H: [V, C]
};

}  // namespace tributary
