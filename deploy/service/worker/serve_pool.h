// One rank of a pool that serves, from its start to its end: what `tributary worker` runs.
#pragma once

#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/interface/communicator.h"
#include "deploy/service/worker/control_channel.h"
#include "deploy/service/worker/data_plane.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

/// Callbacks and choices of the caller. All may be empty.
struct WorkerEvents {
  /// Lines for the operator, on rank 0; from any thread. Empty: stderr.
  std::function<void(const std::string&)> log;
  /// Rank 0: the pool serves.
  std::function<void(const RegisterPool&)> serving;
  /// Rank 0, from another thread: a worker is silent, and this one may be stuck in a round with it.
  /// It should end the program; if it is empty, the round's deadline ends the pool.
  std::function<void(const Status&)> fatal;
  /// SIGINT and SIGTERM end the pool: no admissions, running sequences up to the drain timeout,
  /// then every worker.
  bool signals = false;
  /// Every rank is a process of its own, which gets these signals as well. Ranks other than 0
  /// ignore them and wait for rank 0's order.
  bool own_process = false;
};

/// Returns after an orderly end of the whole pool. Otherwise throws what ended it or prevented its
/// start (the same error on every rank, if one of them knows it). `connect_control` is called on
/// rank 0; what the options say about a control plane is its affair (connect_by_link).
void run_worker(const WorkerOptions& options, Communicator& communicator,
                const MakeTransport& make_transport, const WorkerEvents& events,
                const ConnectControl& connect_control);

}  // namespace tributary
