// The model that a pool serves: its shape, the memory for it, and the weights if it was given a
// model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/interface/backend.h"
#include "core/layer/mla_layer.h"
#include "core/model/pool_shape.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

struct PoolModel {
  std::string name;  // of the shape, or the model's path
  PoolShape served;
  std::int32_t pages = 0;  // of each worker
  /// One per layer; empty if the pool has no model.
  std::vector<std::unique_ptr<MlaLayer>> layers;
  /// One per layer, if the caller gave these (WorkerOptions::given_head_weights).
  std::vector<HeadProjection> given_heads;

  /// The projections of a layer; the pool has weights.
  [[nodiscard]] const HeadProjection& heads(std::int32_t layer) const {
    const auto index = static_cast<std::size_t>(layer);
    return layers.empty() ? given_heads[index] : layers[index]->heads();
  }
};

/// Reads the model that the options name. Throws the errors of its readers, and kInvalidArgument
/// for more layers than the model has, for given weights of another shape or beside a model's, or
/// if no page fits. `backend` outlives the result.
[[nodiscard]] PoolModel load_pool_model(const WorkerOptions& options, Backend& backend);

}  // namespace tributary
