// Brings rows of sequences from the workers that hold them into a client's memory.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/deadline.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// See TierClient::pull_rows.
void pull_rows(WorkerConnections& connections, std::span<const PulledRows> parts,
               Deadline deadline);

/// Throws kInvalidArgument unless the sequence has rows begin .. end - 1, one at least.
void check_pull(const SequenceHandle& sequence, std::int64_t begin, std::int64_t end);

}  // namespace tributary
