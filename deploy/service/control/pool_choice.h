// The pools to ask for a new sequence, in order, and the time to come back if all are full.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/sequencer/admit_request.h"
#include "deploy/service/control/pool_registry.h"

namespace tributary {

/// Serving pools that could hold the sequence if they were empty: the largest share of free pages
/// first, then the fewest sequences. Throws kUnavailable if no pool serves, kTooLarge if no serving
/// pool could ever hold it.
[[nodiscard]] std::vector<std::string> pools_to_ask(const PoolRegistry& registry,
                                                    const AdmitRequest& request);

/// Whether an empty pool would admit it.
[[nodiscard]] bool could_hold(const RegisterPool& pool, const AdmitRequest& request);

/// Seconds until some sequence is likely to end, 1 .. 30: the mean time between the ends of the
/// last half minute. If none ended, the time since the last end or since `start`.
[[nodiscard]] int retry_after_seconds(const PoolRegistry& registry, Time start, Time now);

}  // namespace tributary
