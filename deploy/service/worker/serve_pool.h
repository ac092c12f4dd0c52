// One rank of a pool that serves, from start to end; `tributary worker` runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "comm/mesh/mesh_door.h"
#include "core/base/error.h"
#include "core/interface/clock.h"
#include "core/interface/communicator.h"
#include "core/pool/pool_worker.h"
#include "deploy/service/worker/home/data_plane.h"
#include "deploy/service/worker/leader/control_channel.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

/// Callbacks and choices of the caller. All may be empty.
struct WorkerEvents {
  /// Receives lines for the operator, on rank 0, from any thread. Empty: stderr.
  std::function<void(const std::string&)> log;
  /// Called on rank 0, on the worker's thread, when a round of `items` has ended and so many pages
  /// are in use on all workers together. No later request of a client is answered before.
  using Round = std::function<void(const RoundReport&, std::size_t items, std::int64_t pages_used)>;
  Round round;
  /// Called on rank 0 when the pool serves.
  std::function<void(const RegisterPool&)> serving;
  /// Called on rank 0, from another thread, when a worker is lost and this one is stuck in a round
  /// with it. It should end the program; if it is empty, the round's deadline ends the pool.
  std::function<void(const Status&)> fatal;
  /// SIGINT and SIGTERM end the pool: it admits no more, lets running sequences go on up to the
  /// drain timeout, then ends every worker.
  bool signals = false;
  /// Every rank is its own process, which gets these signals as well. Ranks other than 0 ignore
  /// them and wait for rank 0's order, unless they have asked_to_leave.
  bool own_process = false;
  /// Asked twice a second on ranks other than 0: whether this worker is to end while its pool goes
  /// on. What it holds goes to the others first, as far as that is done within the drain timeout.
  std::function<bool()> asked_to_leave;
};

/// The ranks of a pool.
struct PoolRanks {
  // NOLINTNEXTLINE(google-explicit-constructor): most pools have no door
  PoolRanks(Communicator& communicator, MeshDoor* door = nullptr)
      : communicator(communicator), door(door) {}

  Communicator& communicator;
  /// Rank 0's, by which others come in the place of lost workers; null: nobody can. It outlives the
  /// pool.
  MeshDoor* door;
};

/// Returns after an orderly end of the whole pool. Otherwise throws the error that ended it or
/// prevented its start (the same on every rank, if one of them knows it). `connect_control` is
/// called on rank 0; it alone uses the options about a control plane (connect_by_link). Everything
/// in here goes by `clock`. A process that has come by the door of a pool that runs calls this as
/// all do that start together.
void run_worker(const WorkerOptions& options, const PoolRanks& ranks,
                const MakeTransport& make_transport, const WorkerEvents& events,
                const ConnectControl& connect_control, Clock& clock = steady_clock());

}  // namespace tributary
