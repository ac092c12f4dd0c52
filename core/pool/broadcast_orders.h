// Orders by broadcasts on the pool's communicator: where there is nothing but the pool.
#pragma once

#include <chrono>

#include "core/interface/communicator.h"
#include "core/pool/order_channel.h"

namespace tributary {

/// Both calls are collectives: every rank waits for every order that rank 0 sends. A missed
/// deadline or a failure poisons the communicator, which looks for failures itself.
class BroadcastOrders final : public OrderChannel {
 public:
  /// `rest_timeout`: from the beginning of a long order to its end.
  BroadcastOrders(Communicator& communicator, std::chrono::milliseconds rest_timeout)
      : communicator_(communicator), rest_timeout_(rest_timeout) {}

  Status send(std::span<const std::byte> order, Deadline deadline) override;
  Status wait(std::vector<std::byte>& order, Deadline deadline,
              const std::function<Status()>& look) override;

 private:
  Communicator& communicator_;
  std::chrono::milliseconds rest_timeout_;
};

}  // namespace tributary
