// What a config.json says of how the attention's weights are stored. Included by .cc files alone,
// as config_keys.h is.
#pragma once

#include <filesystem>

#include "core/model/config_keys.h"

namespace tributary {

/// Throws kUnsupported, naming the method, for a `quantization_config` that is not FP8 e4m3 in
/// blocks of 128 x 128, unless its list of modules that are left alone has the attention of all
/// `layers` layers.
void check_quantization(const ConfigKeys& config, int layers);
/// The same for ModelOpt's file beside a config that does not mention it.
void check_quantization_beside(const std::filesystem::path& config, int layers);

}  // namespace tributary
