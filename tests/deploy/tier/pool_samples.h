// One full example of every message of a pool and the control plane, with no field at its default.
#pragma once

#include <vector>

#include "deploy/tier/admission_answer.h"
#include "deploy/tier/pool_messages.h"

namespace tributary {

[[nodiscard]] wire::Shape sample_shape();
[[nodiscard]] SequenceInfo sample_sequence();
[[nodiscard]] PoolMetrics sample_metrics();
[[nodiscard]] std::vector<FromPool> samples_from_pool();
[[nodiscard]] std::vector<ToPool> samples_to_pool();
[[nodiscard]] AdmissionAnswer sample_answer();

}  // namespace tributary
