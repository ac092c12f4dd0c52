// The answer to GET /v1/cluster: pools, workers and their counters, for people and for the status
// page.
#pragma once

#include <string>

#include "deploy/service/control/tier_view.h"

namespace tributary {

/// Counters are totals since the start of a pool, with the bounds of their histograms: two reports
/// give the rates between them.
[[nodiscard]] std::string cluster_json(const TierView& tier);

}  // namespace tributary
