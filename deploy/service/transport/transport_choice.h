// The transport of a pool's data plane: the operator's choices, and the result on these machines.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tributary {

/// In a pool, the transport that it speaks; `kAuto` takes UCX where it has more than TCP between
/// all machines. In a client, the transport that it accepts; `kAuto` speaks what an address says.
/// `kLocal`: all is in one process (deploy/local); no operator asks for it.
enum class TransportChoice : std::uint8_t { kAuto, kUcx, kTcp, kLocal };

/// `auto`, `ucx`, `tcp`, and back, except `local`; throws kInvalidArgument.
[[nodiscard]] std::string_view transport_choice_name(TransportChoice choice) noexcept;
[[nodiscard]] TransportChoice parse_transport_choice(std::string_view name);

/// The scheme of a data plane's addresses, and the reason for it.
struct ChosenTransport {
  std::string scheme;  // `tcp`, `tls` (TCP, encrypted), `ucx` or `local`
  std::string reason;  // for the operator
};

/// The requirements on a pool's data plane.
struct WantedTransport {
  TransportChoice choice = TransportChoice::kAuto;
  bool encrypted = false;      // comm/tcp alone does
  bool shared_memory = false;  // comm/ucx alone has it
};

/// `rdma_ports`: those of each worker's machine, with the names of ucx_rdma_ports(). Throws
/// kInvalidArgument for requirements that no transport meets together.
[[nodiscard]] ChosenTransport choose_transport(const WantedTransport& wanted,
                                               std::span<const std::string> rdma_ports);

}  // namespace tributary
