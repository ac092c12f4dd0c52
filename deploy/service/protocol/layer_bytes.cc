#include "deploy/service/protocol/layer_bytes.h"

#include "core/base/dtype.h"

namespace tributary::wire {

TokenBytes token_bytes(const PoolShape& shape, LayerMode mode) {
  const auto size = [](int count) { return static_cast<std::size_t>(count); };
  const std::size_t values = size(shape.heads) * size(shape.v_head_dim) * sizeof(float);
  const std::size_t hidden = size(shape.hidden_size) * sizeof(float);
  switch (mode) {
    case LayerMode::kAttend:
      return {shape.query_bytes(), shape.row_bytes(), shape.state_shape().record_bytes(),
              shape.selected_bytes()};
    case LayerMode::kAttendProjected:
      return {shape.query_bytes(), shape.row_bytes(), values, shape.selected_bytes()};
    case LayerMode::kAttendUnabsorbed:
      return {size(shape.heads) * size(shape.unabsorbed_width()) * dtype_bytes(shape.query_dtype),
              shape.row_bytes(), values + size(shape.heads) * sizeof(float),
              shape.selected_bytes()};
    case LayerMode::kForward:
      return {hidden, 0, hidden, 0};
  }
  return {};
}

std::string_view missing_weights(const PoolShape& shape, LayerMode mode) {
  if (mode == LayerMode::kAttend) return {};
  if (shape.v_head_dim == 0) return "weights: it serves attend alone";
  if (mode != LayerMode::kForward) return {};
  if (shape.topk > 0) return "indexer: its clients select rows";
  return shape.hidden_size == 0 ? "model's weights" : "";
}

}  // namespace tributary::wire
