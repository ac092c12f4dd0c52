// `tributary replay --service`: the same requests, rows and queries as a replay on a pool of its
// own, through a running service; so the same digest.
#pragma once

#include <vector>

#include "core/workload/trace.h"
#include "deploy/replay/replay.h"

namespace tributary {

/// Throws Error; its sequences are freed before it. `progress`: show a bar on stderr.
[[nodiscard]] ReplayReport replay_service(const ReplayOptions& options,
                                          const std::vector<TraceRequest>& requests, bool progress);

}  // namespace tributary
