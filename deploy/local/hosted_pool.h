// A pool that this program runs for its own use: on rank 0 a control plane and the pool's user live
// as threads beside the worker. No control port opens, and MPI stays on the workers' threads.
#pragma once

#include <functional>
#include <memory>

#include "comm/local/local_transport.h"
#include "core/interface/communicator.h"
#include "deploy/local/local_control.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/worker/serve_pool.h"

namespace tributary {

/// A pool that serves, to its user on rank 0.
class HostedPool {
 public:
  HostedPool(RegisterPool card, MakeTransport make_transport, std::shared_ptr<LocalControl> control)
      : card_(std::move(card)),
        make_transport_(std::move(make_transport)),
        control_(std::move(control)) {}

  [[nodiscard]] const RegisterPool& card() const noexcept { return card_; }
  /// A client of this pool. Its calls end when the pool does, and with no deadline of their own.
  [[nodiscard]] std::unique_ptr<TierClient> make_client() const;
  /// Throws kPoolLost when it has ended.
  [[nodiscard]] Heartbeat heartbeat() const { return control_->heartbeat(); }

 private:
  RegisterPool card_;
  MakeTransport make_transport_;
  std::shared_ptr<LocalControl> control_;
};

/// The use that rank 0 makes of a pool.
struct PoolUse {
  /// On rank 0, on a thread of its own. The pool ends when it returns.
  std::function<void(const HostedPool&)> run;
  /// WorkerEvents::round.
  WorkerEvents::Round round = {};
};

/// Runs a pool for as long as `use` needs it. All ranks call it together. `options` as for
/// `tributary worker`; what they say about a control plane, leases, canaries and moves has no
/// effect. `network`: between threads, one object for all ranks; null between processes, which
/// listen on `options.listen`, or, where that is empty, on shared_address(). Throws what kept the
/// pool from starting or ended it, on every rank; what `use` threw, on rank 0.
void host_pool(WorkerOptions options, Communicator& communicator,
               const std::shared_ptr<LocalNetwork>& network, const PoolUse& use);

}  // namespace tributary
