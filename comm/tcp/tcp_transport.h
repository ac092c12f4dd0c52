// The transport between processes and machines over plain TCP sockets, encrypted where wanted.
#pragma once

#include <memory>

#include "comm/transport/transport.h"

namespace tributary {

/// Name `tcp`. It has one thread, which sleeps while idle unless `busy_poll`. Without TLS and
/// `busy_poll` send() writes what the socket takes at once. A connection is one
/// socket, which carries its messages in the order of send(). A large payload is read directly into
/// its landing. A side that only connects has no listening socket.
///
/// Before anything else each side proves to the other that it knows their secret
/// (comm/transport/proof.h). A stranger can make us neither allocate nor wait: at most 128 unproven
/// connections are open, the oldest is closed first, and each has connect_timeout to prove itself.
/// With `tls` everything is encrypted, and clients show certificates if `client_authority` is set.
/// Without it, anybody who can change bytes in transit can change messages: use a closed network.
///
/// Accepting pauses while memory is short, or all but the last descriptors of the process are in
/// use: the rest is for what it does besides. A listening socket that fails for good is reported to
/// on_listener_failed().
///
/// Throws kInvalidArgument for a `listen` that is not an address and for files of `tls` that cannot
/// be used, kIo when the address cannot be bound or descriptors have run out.
[[nodiscard]] std::unique_ptr<Transport> make_tcp_transport(const TransportConfig& config,
                                                            TransportHandler& handler);

}  // namespace tributary
