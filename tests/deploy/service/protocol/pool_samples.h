// One full example of every message of a pool and the control plane, with no field at its default.
#pragma once

#include <vector>

#include "deploy/service/protocol/admission.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

[[nodiscard]] PoolShape sample_shape();
[[nodiscard]] SequenceInfo sample_sequence();
[[nodiscard]] PoolMetrics sample_metrics();
[[nodiscard]] std::vector<FromPool> samples_from_pool();
[[nodiscard]] std::vector<ToPool> samples_to_pool();
[[nodiscard]] SequenceHandle sample_answer();

}  // namespace tributary
