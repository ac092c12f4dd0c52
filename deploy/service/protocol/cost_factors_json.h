// What a pool has learned of its constants, as JSON: in its heartbeats, and in the answer to its
// registration. For .cc files of deploy/ alone: shows the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/cost/cost_correction.h"

namespace tributary {

[[nodiscard]] nlohmann::json cost_factors_to_json(const CostFactors& factors);
/// `what` names the object in messages. Throws kMalformedInput for a factor outside
/// CostCorrection's bounds: no pool learns one.
[[nodiscard]] CostFactors cost_factors_from_json(const nlohmann::json& value,
                                                 std::string_view what);

}  // namespace tributary
