// One side of the exchange in ucx_handshake.h, without I/O.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/ucx/ucx_handshake.h"

namespace tributary::ucx {

class HandshakeSide {
 public:
  /// `who`: the identity as which we connect. `ours`: the place where the other side's messages go.
  HandshakeSide(const tributary::Introduction& who, Contact ours);
  /// `secret_of`: as in TransportConfig; outlives this.
  HandshakeSide(const std::function<std::optional<Secret>(std::uint64_t)>& secret_of, Contact ours);

  [[nodiscard]] const Contact& ours() const noexcept { return ours_; }
  /// Whether the other side has proven itself. After that its messages go elsewhere, but for a
  /// refusal of the accepting side.
  [[nodiscard]] bool done() const noexcept { return done_; }

  /// The first bytes of the connecting side.
  [[nodiscard]] std::vector<std::byte> opening() const;

  struct Step {
    std::vector<std::byte> reply;    // to be sent; may be empty
    std::optional<Contact> contact;  // the other side's, which has proven itself
  };
  /// Takes one message of the other side. Throws the error that ends the connection:
  /// kMalformedInput, kCorrupt or kUnsupported for bytes that are not the next message,
  /// kUnavailable if we talk to ourselves, kPermissionDenied if a side does not know the secret,
  /// and the other side's refusal.
  [[nodiscard]] Step take(std::span<const std::byte> bytes);

  /// Who was proven. Call it once done().
  [[nodiscard]] Proven proven() const;

  /// The accepting side's introduction, once the connecting one has proven itself.
  [[nodiscard]] std::vector<std::byte> answer() const;

 private:
  [[nodiscard]] Step on_message(const proof::Opening& opening);
  [[nodiscard]] Step on_message(const proof::Challenge& challenge);
  [[nodiscard]] Step on_message(Introduction introduction);
  [[nodiscard]] Step on_message(const Refusal& refusal) const;

  const std::function<std::optional<Secret>(std::uint64_t)>* secret_of_ = nullptr;  // if it accepts
  Contact ours_;
  std::optional<Secret> secret_;
  proof::Transcript said_;
  bool challenged_ = false;  // both nonces are known
  bool done_ = false;
};

}  // namespace tributary::ucx
