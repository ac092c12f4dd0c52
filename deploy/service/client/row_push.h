// Sends latent rows of a prompt from a client's memory to the workers that own their pages.
#pragma once

#include <span>

#include "core/base/deadline.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// See TierClient::push_rows.
void push_rows(WorkerConnections& connections, std::span<const PromptRows> parts,
               Deadline deadline);

}  // namespace tributary
