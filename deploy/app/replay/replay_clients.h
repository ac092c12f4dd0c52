// The clients of a replay: they admit the requests, push generated rows, and decode in batches.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "core/workload/trace.h"
#include "deploy/app/replay/replay.h"

namespace tributary {

/// Runs `options.clients` clients to the end of the requests, and reports what they saw.
/// `step_done` is called on a client's thread after each of its steps. A bar is drawn on
/// `terminal`, which may be null. Throws Error; the sequences are freed before it.
[[nodiscard]] ReplayReport run_clients(
    const ReplayOptions& options, const std::vector<TraceRequest>& requests, std::FILE* terminal,
    const std::function<std::unique_ptr<TierClient>()>& make_client,
    const std::function<void()>& step_done = {});

}  // namespace tributary
