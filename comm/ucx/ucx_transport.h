// The transport between processes and machines: active messages of UCX over TCP, and over RDMA
// where the machine has it.
#pragma once

#include <memory>
#include <string>

#include "comm/transport/transport.h"

namespace tributary {

/// Name `ucx`. It has one progress thread, which sleeps while idle unless `busy_poll`. Small
/// payloads are copied once on arrival; large ones are fetched into a landing that is one
/// contiguous range without a copy of ours (adjacent pieces count as one).
///
/// `listen` is a plain TCP socket on which two sides introduce themselves (comm/ucx/front_door.h).
/// It stays open while they are connected, so that the death of a process is noticed at once.
/// Messages are sent over connections of UCX, which the connecting side opens to ports that UCX
/// chooses: a firewall between the two must let them through as well.
///
/// UCX chooses devices and protocols; the operator can influence it with UCX's own environment
/// variables. Unless UCX_NET_DEVICES says otherwise, a transport that listens uses the device that
/// has its address, and RDMA. One that listens on 0.0.0.0, or only connects, has a port of UCX on
/// every device. With `shared_memory` peers on this machine are reached through shared memory,
/// where UCX cannot withdraw what is in flight to a dead peer.
///
/// Strangers are refused, at the front door by us and at UCX's ports by UCX. But UCX trusts
/// everyone who speaks its protocol: it has no encryption, and a hostile peer can write into this
/// process. Listen on addresses of a closed network only.
///
/// Throws kInvalidArgument for a `listen` that is not an address, kUnsupported for header sizes
/// that UCX cannot carry here, kIo when UCX cannot start or the address cannot be bound.
[[nodiscard]] std::unique_ptr<Transport> make_ucx_transport(const TransportConfig& config,
                                                            TransportHandler& handler);

/// The RDMA ports that have a link and that the operator's settings let UCX use, by UCX's names:
/// `mlx5_0:1,mlx5_1:1`. Empty: UCX has only TCP between machines.
[[nodiscard]] std::string ucx_rdma_ports();

/// The version of the library that is loaded: `1.13.1`.
[[nodiscard]] std::string ucx_version();

}  // namespace tributary
