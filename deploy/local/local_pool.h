// A whole tier in one process: leader and workers as threads, the data plane between them and their
// clients in memory. No MPI, no sockets.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "core/base/deadline.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

/// The options of a pool in one process that differ from those of processes. Nothing here can be
/// lost without the caller, whose process may be stopped for long (a debugger, Ctrl-Z), so leases
/// and watches do not end what it holds.
[[nodiscard]] WorkerOptions local_options();

/// How long the caller waits for the pool's threads. They continue on their own after that.
struct LocalPoolLimits {
  /// The limit until the pool serves. It is a little longer than workers wait for each other while
  /// they load (half an hour, WorkerOptions::start_timeout_ms), so that their own error comes
  /// first.
  std::chrono::milliseconds start{31 * 60'000};
  /// The limit until the threads have ended; the current round ends first.
  std::chrono::milliseconds end{60'000};
};

/// Runs the pool that `tributary worker` runs (run_worker), on threads, with the part of the
/// control plane that decides (LocalControl). A forked process has none of the threads: there the
/// destructor does nothing, and check_process() throws.
class LocalPool {
 public:
  /// `options` come from local_options(), as for `tributary worker`; those about processes and
  /// networks have no effect. Returns when the pool serves. Throws kInvalidArgument unless 1 <=
  /// workers <= ThreadGroup::kMaxRanks, the error that keeps the pool from starting, and
  /// kDeadlineExceeded after `limits.start`: a pool that would serve later ends at once.
  LocalPool(int workers, const WorkerOptions& options, const LocalPoolLimits& limits = {});
  /// Calls close(). Threads that do not end in time, or did not for an earlier close(), are left
  /// running.
  ~LocalPool();
  LocalPool(const LocalPool&) = delete;
  LocalPool& operator=(const LocalPool&) = delete;

  /// Ends the pool after the current round and joins its threads; calls of clients end with
  /// kPoolLost. A second call, from any thread, waits for the first. Throws kDeadlineExceeded if
  /// the threads have not ended `limits.end` after `begin` (now, if that is not given); it may then
  /// be called again.
  void close(std::optional<Time> begin = {});
  /// Starts to end the pool and does not wait: several pools can end side by side.
  void terminate();
  /// Throws kFailedPrecondition in another process than the one that made the pool.
  void check_process() const;

  /// Makes a client of this pool only; the config's url and TLS have no effect. The client may
  /// outlive the pool: its calls then throw.
  [[nodiscard]] std::unique_ptr<TierClient> make_client(const TierClientConfig& config) const;

  /// Throws kPoolLost when it has ended.
  [[nodiscard]] Heartbeat heartbeat() const;
  /// The shape that it serves.
  [[nodiscard]] const PoolShape& shape() const noexcept;
  [[nodiscard]] int pages_per_worker() const noexcept;

 private:
  class Run;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
