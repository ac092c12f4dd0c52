// RoPE frequencies, with YaRN where the model uses it.
#pragma once

#include <vector>

#include "core/model/model_shape.h"

namespace tributary {

/// Angular frequency of each adjacent pair (2i, 2i + 1), i = 0 .. dim/2 - 1: theta^(-2i/dim), with
/// YaRN interpolated between freq and freq / factor by the linear ramp between the correction
/// dimensions of beta_fast and beta_slow (DeepSeek-V3 inference/model.py, precompute_freqs_cis).
/// YaRN applies at every position. cos and sin carry no factor. Throws kInvalidArgument for an odd
/// dim, a theta of at most 1, or a ramp whose ends are in the wrong order.
[[nodiscard]] std::vector<double> rope_frequencies(const RopeConfig& config, int dim);

}  // namespace tributary
