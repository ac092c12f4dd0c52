// The transport of the data plane: an address says by its scheme how to speak to a worker.
#pragma once

#include <string>

#include "comm/transport/transport.h"
#include "deploy/service/transport/transport_choice.h"

namespace tributary {

/// Makes transports whose addresses begin with `tcp://` (comm/tcp), `tls://` (the same, encrypted)
/// or `ucx://` (comm/ucx). Each listens by the one that its config's `listen` names, and connects
/// by the one that an address names: comm/ucx, which listens on devices of its own, starts when it
/// is needed first. TransportConfig::tls is for `tls` alone; without it a client trusts the
/// system's authorities.
///
/// `allowed` bounds what connect() agrees to; kUnsupported for the rest. kInvalidArgument for an
/// address without one of the schemes. A build without UCX says kUnsupported for `ucx://`.
[[nodiscard]] MakeTransport make_data_transport(TransportChoice allowed = TransportChoice::kAuto);

/// This machine's RDMA ports (comm/ucx, ucx_rdma_ports()); empty in a build without UCX.
[[nodiscard]] std::string rdma_ports();
/// UCX's version, `1.13.1`, or `not in this build`.
[[nodiscard]] std::string ucx_text();

}  // namespace tributary
