// Sends one layer of a step of a batch to the homes of its sequences, and receives the results.
#pragma once

#include <span>

#include "core/base/deadline.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// See TierClient::attend.
void run_layer(WorkerConnections& connections, wire::LayerMode mode,
               std::span<const LayerItem> items, int layer, Deadline deadline);

}  // namespace tributary
