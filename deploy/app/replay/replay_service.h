// `tributary replay --service`: the same requests, rows and queries as a replay on its own pool,
// through a running service; hence the same digest.
#pragma once

#include <cstdio>
#include <vector>

#include "core/workload/trace.h"
#include "deploy/app/replay/replay.h"

namespace tributary {

/// Throws Error; its sequences are freed first. Draws a bar on `terminal`, which may be null.
[[nodiscard]] ReplayReport replay_service(const ReplayOptions& options,
                                          const std::vector<TraceRequest>& requests,
                                          std::FILE* terminal);

}  // namespace tributary
