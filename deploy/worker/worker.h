// One rank of a pool that serves, from its start to its end: what `tributary worker` runs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/interface/communicator.h"
#include "deploy/worker/control_link.h"
#include "deploy/worker/data_plane.h"
#include "deploy/worker/worker_options.h"

namespace tributary {

/// What the caller wants to hear of or to decide. All may be empty.
struct WorkerEvents {
  /// Lines for the operator, on rank 0; from any thread. Empty: stderr.
  std::function<void(const std::string&)> log;
  /// Rank 0: the pool serves.
  std::function<void(const RegisterPool&)> serving;
  /// Rank 0, from another thread: a worker is silent, and this one may be stuck in a round with it.
  /// The program ends then; without, the round's deadline ends the pool.
  std::function<void(const Status&)> fatal;
  /// SIGINT and SIGTERM end the pool: no admissions, running sequences up to the drain timeout,
  /// then every worker. On other ranks in processes of their own they are ignored: the order comes
  /// from rank 0.
  bool signals = false;
};

/// Returns after an ordered end of the whole pool. Throws what ended it else, or kept it from
/// starting (the same on every rank, where one of them knows).
void run_worker(const WorkerOptions& options, Communicator& communicator,
                const MakeTransport& make_transport, const WorkerEvents& events);

/// The same with another control plane than the one that the options name. Called on rank 0.
using ConnectControl =
    std::function<std::unique_ptr<ControlChannel>(RegisterPool pool, ControlLinkHandlers handlers)>;
void run_worker(const WorkerOptions& options, Communicator& communicator,
                const MakeTransport& make_transport, const WorkerEvents& events,
                const ConnectControl& connect_control);

}  // namespace tributary
