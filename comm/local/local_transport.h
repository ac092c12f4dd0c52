// The transport inside one process, between threads: for tests, and for a pool and its clients in
// one program.
#pragma once

#include <memory>

#include "comm/transport/transport.h"

namespace tributary {

class Clock;

/// Knows which transport listens at which address. Addresses are "NAME:PORT" with any name; port 0
/// picks a free port. Transports that connect to each other share one network, which lives as long
/// as any of them.
class LocalNetwork {
 public:
  LocalNetwork();
  /// Whose transports have their threads and times from `clock`, which outlives them.
  explicit LocalNetwork(Clock& clock);
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

 private:
  friend class LocalTransport;
  Clock& clock_;
  std::unique_ptr<struct LocalRegistry> registry_;
};

/// Name `local`. It has one thread, which sleeps while idle and ignores `busy_poll`. A payload is
/// copied once, on the receiver's thread. Throws kInvalidArgument if `listen` is not an address,
/// kAlreadyExists if it is taken.
[[nodiscard]] std::unique_ptr<Transport> make_local_transport(std::shared_ptr<LocalNetwork> network,
                                                              const TransportConfig& config,
                                                              TransportHandler& handler);

}  // namespace tributary
