// Checks that a layer's host weights have the sizes that its shape says, for everything that is
// built from the two.
#pragma once

#include "core/model/layer_weights.h"
#include "core/model/model_shape.h"

namespace tributary {

/// Throws kInvalidArgument naming the weight, its number of elements and the number expected.
/// The query weights that the shape does not use must be empty.
void check_layer_weights(const ModelShape& shape, const LayerWeights& weights);

}  // namespace tributary
