// How the workers of a pool find each other when nobody has started them together.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/mesh/mesh_door.h"
#include "comm/wire/access_token.h"
#include "core/interface/clock.h"
#include "core/interface/communicator.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

/// Waits for the other workers at MeetingOptions::leader, by the start timeout, and returns the
/// communicator of all of them: over TCP, encrypted with the worker's certificate if it has one, or
/// over UCX where that was asked for. `door`: rank 0's, see MeshConfig. Needs
/// WorkerOptions::meeting. `log` receives lines for the operator. Throws as join_mesh() does,
/// kInvalidArgument for an address without a port.
[[nodiscard]] std::unique_ptr<Communicator> meet_pool(
    const WorkerOptions& options, MeshDoor& door,
    const std::function<void(const std::string&)>& log, Clock& clock);

/// The key of a pool whose workers have met so, of the run that is named `run`. Throws as
/// read_token_file() does.
[[nodiscard]] wire::Token pool_key(const WorkerOptions& options, const wire::Token& run);

}  // namespace tributary
