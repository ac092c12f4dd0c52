// The transport inside one process: threads instead of processes, for tests of everything that
// talks, and for a pool and its clients in one program.
#pragma once

#include <memory>

#include "comm/transport/transport.h"

namespace tributary {

/// Who listens where. Addresses are "NAME:PORT" with any name; port 0 picks a free one. Transports
/// that are to meet share one network; it lives as long as any of them.
class LocalNetwork {
 public:
  LocalNetwork();
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

 private:
  friend class LocalTransport;
  std::unique_ptr<struct LocalRegistry> registry_;
};

/// Name `local`. One thread, which sleeps while nothing happens whatever `busy_poll` says. A
/// payload is copied once, on the receiver's thread. Throws kInvalidArgument for a `listen` that is
/// no address, kAlreadyExists when it is taken.
[[nodiscard]] std::unique_ptr<Transport> make_local_transport(std::shared_ptr<LocalNetwork> network,
                                                              const TransportConfig& config,
                                                              TransportHandler& handler);

}  // namespace tributary
