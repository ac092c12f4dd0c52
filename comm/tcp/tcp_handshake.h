// A connection begins with each side's Preamble and the proofs of comm/transport/proof.h, which
// over TLS hold for its session alone.
//
//   connecting side        accepting side
//   Preamble, Opening  ->
//                      <-  Preamble, Challenge
//   Proof              ->
//                      <-  Verdict
#pragma once

#include <functional>
#include <optional>

#include "comm/http/stream.h"
#include "comm/transport/transport.h"

namespace tributary::tcp {

/// Called once, with ok and who was proven when both sides have proven themselves, with an error if
/// the stream is closed first. Whatever the function captures, above all the stream, is kept until
/// then.
using HandshakeDone = std::function<void(const Status&, const Proven&)>;

/// `done` gets kPermissionDenied if either side does not know the secret, and the other side's own
/// reason if it has no room.
void shake_hands_as_client(Stream& stream, const Introduction& introduction, HandshakeDone done);

struct AcceptingSide {
  std::function<std::optional<Secret>(std::uint64_t id)> secret_of;
  /// Decides about a side that has proven this id. A refusal is sent to it and passed to `done`.
  std::function<Status(std::uint64_t id)> admit;
};

/// After any error but kMalformedInput the other side has received the reason, if it is still
/// there.
void shake_hands_as_server(Stream& stream, AcceptingSide side, HandshakeDone done);

}  // namespace tributary::tcp
