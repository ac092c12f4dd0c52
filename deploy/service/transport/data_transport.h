// The transport of the data plane: the scheme of a worker's address names the transport.
#pragma once

#include <string>

#include "comm/transport/transport.h"
#include "deploy/service/transport/transport_choice.h"

namespace tributary {

/// Makes transports whose addresses begin with `tcp://` (comm/tcp), `tls://` (the same, encrypted)
/// or `ucx://` (comm/ucx). Each listens by the scheme of its config's `listen`, and connects by the
/// scheme of an address. comm/ucx listens on its own devices, so it starts only when it is needed.
/// TransportConfig::tls is for `tls` only; without it a client trusts the system's authorities.
///
/// `allowed` bounds the transports that connect() accepts; it throws kUnsupported for the rest, and
/// kInvalidArgument for an address without one of the schemes. A build without UCX throws
/// kUnsupported for `ucx://`.
[[nodiscard]] MakeTransport make_data_transport(TransportChoice allowed = TransportChoice::kAuto);

/// This machine's RDMA ports (comm/ucx, ucx_rdma_ports()); empty in a build without UCX.
[[nodiscard]] std::string rdma_ports();
/// UCX's version, `1.13.1`, or `not in this build`.
[[nodiscard]] std::string ucx_text();

}  // namespace tributary
