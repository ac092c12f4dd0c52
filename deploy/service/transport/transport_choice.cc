#include "deploy/service/transport/transport_choice.h"

#include <array>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

constexpr std::array<std::string_view, 4> kNames{"auto", "ucx", "tcp", "local"};
constexpr std::size_t kAskedFor = 3;  // may be asked for

}  // namespace

std::string_view transport_choice_name(TransportChoice choice) noexcept {
  return kNames.at(static_cast<std::size_t>(choice));
}

TransportChoice parse_transport_choice(std::string_view name) {
  for (std::size_t i = 0; i < kAskedFor; ++i) {
    if (kNames.at(i) == name) return static_cast<TransportChoice>(i);
  }
  fail(ErrorCode::kInvalidArgument, "{} is not auto, ucx or tcp", quote(name));
}

ChosenTransport choose_transport(const WantedTransport& wanted,
                                 std::span<const std::string> rdma_ports) {
  if (wanted.choice == TransportChoice::kLocal) return {"local", "one process"};
  const std::string tcp = wanted.encrypted ? "tls" : "tcp";
  if (wanted.encrypted && (wanted.shared_memory || wanted.choice == TransportChoice::kUcx)) {
    fail(ErrorCode::kInvalidArgument, "transport ucx does not encrypt, tcp does");
  }
  if (wanted.shared_memory && wanted.choice == TransportChoice::kTcp) {
    fail(ErrorCode::kInvalidArgument, "transport tcp has no shared memory, ucx has");
  }
  if (wanted.choice == TransportChoice::kTcp) return {tcp, "asked for"};
  if (wanted.choice == TransportChoice::kUcx) return {"ucx", "asked for"};
  if (wanted.encrypted) return {tcp, "auto: UCX does not encrypt"};
  if (wanted.shared_memory) return {"ucx", "auto: shared memory was asked for"};
  for (std::size_t r = 0; r < rdma_ports.size(); ++r) {
    if (!rdma_ports[r].empty()) continue;
    const std::string where = rdma_ports.size() > 1 ? fmt::format(" at worker {}", r) : "";
    return {tcp, fmt::format("auto: no RDMA port for UCX{}", where)};
  }
  return {"ucx", fmt::format("auto: RDMA by {}", rdma_ports.empty() ? "" : rdma_ports.front())};
}

}  // namespace tributary
