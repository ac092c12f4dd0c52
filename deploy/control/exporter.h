// The tier's metrics in Prometheus' text format.
#pragma once

#include <string>

#include "deploy/control/tier_view.h"

namespace tributary {

/// Metrics of lost pools end with them, but for their number.
[[nodiscard]] std::string metrics_text(const TierView& tier);

}  // namespace tributary
