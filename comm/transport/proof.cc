#include "comm/transport/proof.h"

#include <algorithm>
#include <vector>

#include "comm/wire/codec.h"

namespace tributary::proof {
namespace {

/// The side that makes a proof, or neither: a session is no proof.
enum class Side : std::uint8_t { kConnecting, kAccepting, kBoth, kLast = kBoth };

/// It has a fixed size, so the end of `besides` is unambiguous.
struct Claim {
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
  const std::vector<std::byte> fixed = wire::encode(Claim{.side = side,
                                                          .id = said.opening.id,
                                                          .opening = said.opening.nonce,
                                                          .challenge = said.challenge.nonce,
                                                          .outcome = outcome});
  bytes.insert(bytes.end(), fixed.begin(), fixed.end());
  return wire::mac(secret, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

/// Shorter than a Claim: no proof of the one kind is one of the other.
struct Further {
  Session session{};
  std::uint64_t id = 0;
  static void fields(auto& archive, auto& m) { archive(m.session, m.id); }
};

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

Session session_of(const Secret& secret, const Transcript& said,
                   std::span<const std::byte> besides) {
  return prove(secret, Side::kBoth, said, ErrorCode::kOk, besides);
}

FurtherProof further_proof(const Secret& secret, const Session& session, std::uint64_t id) {
  const std::vector<std::byte> bytes = wire::encode(Further{.session = session, .id = id});
  const wire::Mac whole =
      wire::mac(secret, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  FurtherProof proof{};
  std::copy_n(whole.begin(), proof.size(), proof.begin());
  return proof;
}

}  // namespace tributary::proof
