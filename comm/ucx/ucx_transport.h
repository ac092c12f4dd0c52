// The transport between processes and machines: active messages of UCX over TCP, and over RDMA
// where the machine has it.
#pragma once

#include <memory>

#include "comm/transport/transport.h"

namespace tributary {

/// Name `ucx`. One progress thread; it sleeps while nothing happens unless `busy_poll`. Small
/// payloads are copied once on arrival; large ones are fetched into a landing that is one
/// contiguous range without a copy of ours (adjacent pieces count as one).
///
/// Which devices and protocols are used is UCX's choice, and the operator's through UCX's own
/// environment variables. Without `shared_memory` a peer that dies is noticed at once, over TCP in
/// milliseconds; with it, peers on this machine are reached through shared memory, where UCX cannot
/// notice a death: only a connection closed in order, or send_timeout, ends it then.
///
/// UCX trusts what connects: it has no encryption, and a hostile peer that speaks its protocol can
/// write into this process. Listen on addresses of a closed network only.
///
/// Throws kInvalidArgument for a `listen` that is no address, kUnsupported for header sizes that
/// UCX cannot carry here, kIo when UCX cannot start or the address cannot be bound.
[[nodiscard]] std::unique_ptr<Transport> make_ucx_transport(const TransportConfig& config,
                                                            TransportHandler& handler);

}  // namespace tributary
