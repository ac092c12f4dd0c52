#include "comm/transport/proof.h"

#include <vector>

#include "comm/wire/codec.h"

namespace tributary::proof {
namespace {

/// The side that makes a proof.
enum class Side : std::uint8_t { kConnecting, kAccepting, kLast = kAccepting };

/// It has a fixed size, so the end of `besides` is unambiguous.
struct Proven {
  Side side = Side::kConnecting;
  std::uint64_t id = 0;
  Nonce opening{};
  Nonce challenge{};
  ErrorCode outcome = ErrorCode::kOk;
  static void fields(auto& archive, auto& m) {
    archive(m.side, m.id, m.opening, m.challenge, m.outcome);
  }
};

wire::Mac prove(const Secret& secret, Side side, const Transcript& said, ErrorCode outcome,
                std::span<const std::byte> besides) {
  std::vector<std::byte> bytes(besides.begin(), besides.end());
  const std::vector<std::byte> fixed = wire::encode(Proven{.side = side,
                                                           .id = said.opening.id,
                                                           .opening = said.opening.nonce,
                                                           .challenge = said.challenge.nonce,
                                                           .outcome = outcome});
  bytes.insert(bytes.end(), fixed.begin(), fixed.end());
  return wire::mac(secret, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce{};
  wire::fill_random(nonce);
  return nonce;
}

Proof client_proof(const Secret& secret, const Transcript& said,
                   std::span<const std::byte> besides) {
  return {.mac = prove(secret, Side::kConnecting, said, ErrorCode::kOk, besides)};
}

Verdict server_verdict(const Secret& secret, const Transcript& said, ErrorCode outcome,
                       std::span<const std::byte> besides) {
  return {.outcome = outcome, .mac = prove(secret, Side::kAccepting, said, outcome, besides)};
}

}  // namespace tributary::proof
