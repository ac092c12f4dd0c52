// The first messages of a connection, and how each side proves to the other that it knows their
// secret without sending it. Anybody may send these bytes, so all messages have fixed sizes, and
// each is checked before the next is read.
//
//   connecting side                    accepting side
//   Preamble, Opening (id, nonce)  ->
//                                  <-  Preamble, Challenge (nonce)
//   Proof                          ->
//                                  <-  Verdict (outcome, proof)
//
// A proof is a MAC over what both sides have sent. It covers both nonces, so that an old proof is
// worthless, and the side that made it, so that it cannot be sent back to its maker.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/transport/transport.h"
#include "comm/wire/mac.h"
#include "core/base/error.h"

namespace tributary::tcp {

using Nonce = std::array<std::uint8_t, 32>;

struct Preamble {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  static constexpr std::uint64_t kMagic = 0x3150'4354'4249'5254;  // "TRIBTCP1"
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kBytes = 12;
  static void fields(auto& archive, auto& m) { archive(m.magic, m.version); }
};

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

/// What both sides have sent.
struct Transcript {
  Opening opening;
  Challenge challenge;
};

[[nodiscard]] Nonce random_nonce();
[[nodiscard]] Proof client_proof(const Secret& secret, const Transcript& said);
[[nodiscard]] Verdict server_verdict(const Secret& secret, const Transcript& said,
                                     ErrorCode outcome);

/// kMalformedInput if the other side is not Tributary, kUnsupported if its version differs.
[[nodiscard]] Status check_preamble(const Preamble& preamble);

}  // namespace tributary::tcp
