// Bounds of what a model has of anything: generous multiples of what is published (128 heads, 93
// layers), small enough that products of dimensions fit an int.
#pragma once

namespace tributary {

inline constexpr int kMaxHeads = 1 << 12;
inline constexpr int kMaxLayers = 1 << 12;

}  // namespace tributary
