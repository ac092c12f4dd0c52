// Which transport the data plane of a pool speaks: what the operator may ask for, and what comes
// out on these machines.
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

/// `auto`, `ucx`, `tcp`, and back, but for `local`; throws kInvalidArgument.
[[nodiscard]] std::string_view transport_choice_name(TransportChoice choice) noexcept;
[[nodiscard]] TransportChoice parse_transport_choice(std::string_view name);

/// The beginning of a data plane's addresses, and why it is that one.
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

/// `rdma_ports`: of each worker's machine, as ucx_rdma_ports() names them. Throws kInvalidArgument
/// for what no transport has together.
[[nodiscard]] ChosenTransport choose_transport(const WantedTransport& wanted,
                                               std::span<const std::string> rdma_ports);

}  // namespace tributary
