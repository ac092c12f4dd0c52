// Reads W_UK and W_UV that Python gives to a tributary.Pool.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "core/model/mla_shape.h"
#include "deploy/service/worker/given_head_weights.h"

namespace tributary::python {

/// `arrays`: each layer's kv_b_proj weight, [heads (N + V), kv_lora_rank] fp32 or bf16; the values
/// are copied. Throws TypeError, ValueError, and kInvalidArgument if they do not fit `shape` or are
/// not finite, each with the layer.
[[nodiscard]] std::shared_ptr<const GivenHeadWeights> read_head_weights(nanobind::handle arrays,
                                                                        int v_head_dim,
                                                                        const MlaShape& shape);

}  // namespace tributary::python
