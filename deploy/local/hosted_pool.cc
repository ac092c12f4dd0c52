#include "deploy/local/hosted_pool.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/interface/clock.h"
#include "deploy/service/transport/data_transport.h"
#include "deploy/service/worker/listen_address.h"

namespace tributary {
namespace {

constexpr std::chrono::hours kDay{24};

/// Nothing happens in the pool but what its user asks for.
void complete(WorkerOptions& options, bool threads, Communicator& communicator) {
  options.name = "hosted";
  if (threads) options.transport = TransportChoice::kLocal;
  if (options.listen.empty()) {
    options.listen = threads
                         ? "127.0.0.1"
                         : shared_address(communicator, Deadline::after(std::chrono::minutes(1)));
  }
  options.leader.lease_ms = std::chrono::milliseconds(kDay).count();
  // Nothing large is loaded, so a rank that is stuck or gone is known early in the start, too.
  options.start_timeout_ms = std::max(10'000, options.failure_timeout_ms);
  options.leader.drain_timeout_ms = 0;
  options.leader.canary_interval_ms = 0;
  options.sequencer.move_bytes_per_s = 0;
}

}  // namespace

std::unique_ptr<TierClient> HostedPool::make_client() const {
  TierClientConfig config;
  config.timeout = kDay;
  config.renew_leases = false;
  return std::make_unique<TierClient>(config, make_transport_, control_);
}

void host_pool(WorkerOptions options, Communicator& communicator,
               const std::shared_ptr<LocalNetwork>& network, const PoolUse& use) {
  complete(options, network != nullptr, communicator);
  const MakeTransport make_transport =
      network ? MakeTransport([network](const TransportConfig& config, TransportHandler& handler) {
        return make_local_transport(network, config, handler);
      })
              : make_data_transport();
  const auto control = std::make_shared<LocalControl>(steady_clock());
  Status used;
  std::thread user;
  WorkerEvents events;
  events.log = [](const std::string&) {};  // its user has the report
  events.round = use.round;
  events.serving = [&](const RegisterPool& card) {
    user = std::thread([&, pool = HostedPool(card, make_transport, control)] {
      used = status_of([&] { use.run(pool); });
      control->terminate();
    });
  };
  const Status end = status_of([&] {
    run_worker(options, communicator, make_transport, events,
               [&](RegisterPool pool, ControlLinkHandlers handlers) {
                 return control->connect(std::move(pool), std::move(handlers));
               });
  });
  control->lose(end);
  if (user.joinable()) user.join();
  end.throw_if_error();  // what its user saw of it comes after that
  used.throw_if_error();
}

}  // namespace tributary
