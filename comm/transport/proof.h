// How two sides of a connection prove to each other that they know a secret without sending it:
//
//   connecting side            accepting side
//   Opening (id, nonce)    ->
//                          <-  Challenge (nonce)
//   Proof                  ->
//                          <-  Verdict (outcome, proof)
//
// A proof is a MAC over what both sides have sent. It covers both nonces, so that an old proof is
// worthless, and the side that made it, so that it cannot be sent back to its maker. Anybody may
// send these bytes, so all messages have fixed sizes, and each is checked before the next is read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/transport/transport.h"
#include "comm/wire/mac.h"
#include "core/base/error.h"

namespace tributary::proof {

using Nonce = std::array<std::uint8_t, 32>;

struct Opening {
  std::uint64_t id = 0;
  Nonce nonce{};
  static constexpr std::size_t kBytes = 40;
  static void fields(auto& archive, auto& m) { archive(m.id, m.nonce); }
};

struct Challenge {
  Nonce nonce{};
  static constexpr std::size_t kBytes = 32;
  static void fields(auto& archive, auto& m) { archive(m.nonce); }
};

struct Proof {
  wire::Mac mac{};
  static constexpr std::size_t kBytes = 32;
  static void fields(auto& archive, auto& m) { archive(m.mac); }
};

/// `mac` is zero if the connecting side has not proven itself.
struct Verdict {
  ErrorCode outcome = ErrorCode::kOk;
  wire::Mac mac{};
  static constexpr std::size_t kBytes = 36;
  static void fields(auto& archive, auto& m) { archive(m.outcome, m.mac); }
};

/// All that both sides have sent.
struct Transcript {
  Opening opening;
  Challenge challenge;
};

[[nodiscard]] Nonce random_nonce();

/// The proof of one more secret on a connection. 96 bits: whoever guesses has one try a message.
using FurtherProof = std::array<std::uint8_t, 12>;

// `besides`: the other statements of the side that proves itself, which it vouches for: the
// protocol with its version, an address. It may have any length: it cannot be mistaken for the data
// after it.
[[nodiscard]] Proof client_proof(const Secret& secret, const Transcript& said,
                                 std::span<const std::byte> besides);
[[nodiscard]] Verdict server_verdict(const Secret& secret, const Transcript& said,
                                     ErrorCode outcome, std::span<const std::byte> besides);

/// The session of the connection on which all this was said.
[[nodiscard]] Session session_of(const Secret& secret, const Transcript& said,
                                 std::span<const std::byte> besides);
/// Shows that the connection's other end knows the secret of `id` too.
[[nodiscard]] FurtherProof further_proof(const Secret& secret, const Session& session,
                                         std::uint64_t id);

}  // namespace tributary::proof
