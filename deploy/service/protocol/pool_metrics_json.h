// The JSON of a pool's metrics, in heartbeats and in /v1/cluster. For .cc files of deploy/ only,
// since it shows the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "deploy/service/protocol/pool_metrics.h"

namespace tributary {

/// One field for each field of PoolMetrics. Histograms are {"counts", "sum"}; arrays by phase and
/// by refusal are objects with their names.
[[nodiscard]] nlohmann::json metrics_to_json(const PoolMetrics& metrics);
[[nodiscard]] PoolMetrics metrics_from_json(const nlohmann::json& value, std::string_view what);

}  // namespace tributary
