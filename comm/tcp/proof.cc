#include "comm/tcp/proof.h"

#include <algorithm>
#include <vector>

#include "comm/wire/codec.h"

namespace tributary::tcp {
namespace {

/// The side that makes a proof.
enum class Side : std::uint8_t { kConnecting, kAccepting, kLast = kAccepting };

struct Proven {
  Preamble preamble;
  Side side = Side::kConnecting;
  std::uint64_t id = 0;
  Nonce opening{};
  Nonce challenge{};
  ErrorCode outcome = ErrorCode::kOk;
  static void fields(auto& archive, auto& m) {
    archive(m.preamble, m.side, m.id, m.opening, m.challenge, m.outcome);
  }
};

wire::Mac prove(const Secret& secret, Side side, const Transcript& said, ErrorCode outcome) {
  const std::vector<std::byte> bytes = wire::encode(Proven{.preamble = {},
                                                           .side = side,
                                                           .id = said.opening.id,
                                                           .opening = said.opening.nonce,
                                                           .challenge = said.challenge.nonce,
                                                           .outcome = outcome});
  return wire::mac(secret, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce{};
  wire::fill_random(nonce);
  return nonce;
}

Proof client_proof(const Secret& secret, const Transcript& said) {
  return {.mac = prove(secret, Side::kConnecting, said, ErrorCode::kOk)};
}

Verdict server_verdict(const Secret& secret, const Transcript& said, ErrorCode outcome) {
  return {.outcome = outcome, .mac = prove(secret, Side::kAccepting, said, outcome)};
}

Status check_preamble(const Preamble& preamble) {
  if (preamble.magic != Preamble::kMagic) {
    return {ErrorCode::kMalformedInput, "not a transport of Tributary"};
  }
  if (preamble.version != Preamble::kVersion) {
    return {ErrorCode::kUnsupported, fmt::format("it speaks version {}, this side version {}",
                                                 preamble.version, Preamble::kVersion)};
  }
  return {};
}

}  // namespace tributary::tcp
