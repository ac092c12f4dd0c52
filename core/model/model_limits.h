// Bounds on a model's counts and sizes: generous multiples of the published ones (128 heads, 93
// layers), small enough that products of dimensions fit an int.
#pragma once

namespace tributary {

inline constexpr int kMaxHeads = 1 << 12;
inline constexpr int kMaxLayers = 1 << 12;
inline constexpr int kMaxTopk = 1 << 16;
inline constexpr double kMaxYarn = 1e6;  // factor, beta_fast, beta_slow
inline constexpr double kMaxMscale = 100;

}  // namespace tributary
