// The devices that UCX itself would use on this machine, as the operator's settings let it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tributary::ucx {

/// The devices in what UCX prints of a context: `lo` of a line that ends in "tcp/lo".
[[nodiscard]] std::vector<std::string> devices_in(std::string_view printed);

/// The ports among `ports` (rdma_ports(): `mlx5_0:1,mlx5_1:1`) that UCX has a transport for: it may
/// lack the module, and UCX_TLS and UCX_NET_DEVICES may exclude them. Empty if UCX does not start.
[[nodiscard]] std::string usable_ports(const std::string& ports);

}  // namespace tributary::ucx
