// The keys of a config.json that decide how scores are scaled. Included by .cc files alone, as
// config_keys.h is.
#pragma once

#include <optional>
#include <string>

#include "core/model/config_keys.h"

namespace tributary {

/// `rope_scaling`, or `rope_parameters`, as transformers 5 writes. Throws kMalformedInput if both
/// are given.
[[nodiscard]] std::optional<ConfigKeys> find_scaling(const ConfigKeys& config);
/// The scaling's name under either of its two keys; `default` if there is none.
[[nodiscard]] std::string scaling_type(const ConfigKeys& scaling);

/// Throws kMalformedInput for a `softmax_scale`, which the config inside a golden file has, that is
/// not the computed one.
void check_stated_scale(const ConfigKeys& config, double computed);
/// The same for a `qk_head_dim`, of which the scale is made.
void check_stated_head_dim(const ConfigKeys& config, int qk_head_dim);

}  // namespace tributary
