// The two weights of a layer that stand beside its attention, where a pool applies them itself.
#pragma once

namespace tributary {

class Weight;

/// Of one layer, made by the backend that uses them. Letters as in core/layer/mla_layer.h.
struct LeafWeights {
  const Weight* w_uk = nullptr;  // batch H: [C, N]
  const Weight* w_uv = nullptr;  // batch H: [V, C]
};

}  // namespace tributary
