// Collectives on device memory through the host: download, a collective in host memory, upload. For
// several workers on one GPU, which NCCL refuses, and where there is no NCCL.
#pragma once

#include <memory>

#include "core/interface/backend.h"
#include "core/interface/communicator.h"

namespace tributary {

/// Has the ranks of `host` and shares its failures: poison passes in both directions. Buffers are
/// memory of the backend. The work that fills them was enqueued on the backend before, and work
/// that is enqueued after a call sees what was received. Calls of this communicator and of `host`
/// may alternate, on the backend's thread. Backend and `host` outlive it. Its name is `staged/mpi`,
/// ...
///
/// Its survivors() own those of `host`. Who needs those as well makes them, and stages them.
[[nodiscard]] std::unique_ptr<Communicator> make_staged_communicator(Backend& backend,
                                                                     Communicator& host);

}  // namespace tributary
