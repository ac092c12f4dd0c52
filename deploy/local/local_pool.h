// A whole tier in one process: leader and workers as threads, the data plane between them and their
// clients in memory. No MPI, no sockets.
#pragma once

#include <chrono>
#include <memory>

#include "core/base/deadline.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

/// The options of a pool in one process that differ from those of processes. Nothing here can be
/// lost without the caller, whose process may be stopped for long (a debugger, Ctrl-Z), so leases
/// and watches do not end what it holds.
[[nodiscard]] WorkerOptions local_options();

/// How long the caller waits for the pool's threads; they go on by themselves where that is over.
struct LocalPoolLimits {
  /// Until it serves: a little longer than workers wait for each other while they load (half an
  /// hour, serve_pool.cc), so that what they know comes first.
  std::chrono::milliseconds start{31 * 60'000};
  /// Until the threads have ended: a round that runs now ends first.
  std::chrono::milliseconds end{60'000};
};

/// Runs the pool that `tributary worker` runs (run_worker), on threads, and of the control plane
/// what decides (LocalControl). A fork has none of the threads: there the object does nothing when
/// it goes, and check_process() throws.
class LocalPool {
 public:
  /// `options`, of local_options(), as for `tributary worker`; what they say about processes and
  /// networks has no effect. Returns when the pool serves. Throws kInvalidArgument unless
  /// 1 <= workers <= ThreadGroup::kMaxRanks, what keeps it from starting, and kDeadlineExceeded
  /// after `limits.start`: a pool that serves later ends at once.
  LocalPool(int workers, const WorkerOptions& options, const LocalPoolLimits& limits = {});
  /// As close(); threads that do not end in time, or have not for an earlier close(), are left to
  /// themselves.
  ~LocalPool();
  LocalPool(const LocalPool&) = delete;
  LocalPool& operator=(const LocalPool&) = delete;

  /// Ends the pool and joins its threads, after the round that runs now; calls of clients end with
  /// kPoolLost. A second call, from any thread, waits for the first. Throws kDeadlineExceeded where
  /// they have not ended `limits.end` after `begin`; it may be called again then.
  void close(Deadline::Clock::time_point begin = Deadline::Clock::now());
  /// Begins that, and waits for nothing: several pools end side by side.
  void terminate();
  /// Throws kFailedPrecondition in another process than the one that made the pool.
  void check_process() const;

  /// A client of this pool, and of no other; the config's url and TLS have no effect. It may
  /// outlive the pool: its calls throw then.
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
