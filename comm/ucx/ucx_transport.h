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
/// `listen` is a plain TCP socket on which two sides introduce themselves (comm/ucx/front_door.h);
/// it stays open for as long as they are connected, so that the death of a process is noticed at
/// once. The messages go over connections of UCX, from the connecting side to ports that UCX
/// chooses: a firewall between the two lets them through too.
///
/// Which devices and protocols are used is UCX's choice, and the operator's through UCX's own
/// environment variables. Unless UCX_NET_DEVICES says otherwise, a transport that listens uses the
/// device that bears its address, and RDMA; one that listens on 0.0.0.0, or only connects, has a
/// port of UCX's on every device. With `shared_memory` peers on this machine are reached through
/// shared memory, where UCX cannot take back what is in flight to a dead peer.
///
/// Strangers are sent away, at the front door by us and at UCX's ports by UCX. But UCX trusts who
/// speaks its protocol: it has no encryption, and a hostile peer can write into this process.
/// Listen on addresses of a closed network only.
///
/// Throws kInvalidArgument for a `listen` that is no address, kUnsupported for header sizes that
/// UCX cannot carry here, kIo when UCX cannot start or the address cannot be bound.
[[nodiscard]] std::unique_ptr<Transport> make_ucx_transport(const TransportConfig& config,
                                                            TransportHandler& handler);

}  // namespace tributary
