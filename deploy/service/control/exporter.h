// The tier's metrics in Prometheus' text format.
#pragma once

#include <string>

#include "deploy/service/control/tier_view.h"

namespace tributary {

/// Lost pools have no metrics of their own; only their number is exported.
[[nodiscard]] std::string metrics_text(const TierView& tier);

}  // namespace tributary
