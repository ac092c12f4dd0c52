// Two sides exchange these messages over a plain TCP connection before UCX is involved. Anybody may
// send these bytes, so each one is checked before UCX, which trusts its input, sees it. A contact
// is used only with the proof (comm/transport/proof.h) in its message.
//
//   connecting side        accepting side
//   Opening            ->
//                      <-  Challenge
//   Introduction       ->
//                      <-  Introduction, or a Refusal: at any time until the connection ends
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "comm/transport/proof.h"
#include "core/base/error.h"

namespace tributary::ucx {

/// The address of a UCX worker has about 100 bytes, and up to 100 more for each device.
inline constexpr std::size_t kMaxAddressBytes = 8192;

/// The place where the messages of a connection go.
struct Contact {
  std::uint64_t label = 0;         // messages to the sender of this begin with it
  std::vector<std::byte> address;  // of its UCX worker; 1 to kMaxAddressBytes
};

struct Introduction {
  Contact contact;
  wire::Mac mac{};  // its sender's proof, which vouches for the contact
};

/// The accepting side has no room (kPoolFull), or the other side has not proven itself
/// (kPermissionDenied). A refusal needs no proof: who can send it can cut the connection too.
struct Refusal {
  ErrorCode reason = ErrorCode::kPoolFull;
};

using Message = std::variant<proof::Opening, proof::Challenge, Introduction, Refusal>;

/// On the wire: magic (8 bytes), version (2), which of the messages (2), bytes that follow the
/// checksum (4), CRC-32C of everything else (4); of an introduction the mac, the label (8) and the
/// address. Throws kUnsupported for an address without bytes or with too many.
[[nodiscard]] std::vector<std::byte> encode(const Message& message);

/// How many bytes are needed, given the first ones: those of the whole message once its length is
/// known. Throws kMalformedInput as soon as `begin` cannot be the start of one, kUnsupported for
/// another version.
[[nodiscard]] std::size_t message_bytes(std::span<const std::byte> begin);

/// Decodes exactly one message. Throws as message_bytes does, and kCorrupt for a wrong checksum.
[[nodiscard]] Message decode(std::span<const std::byte> bytes);

/// The proofs of both sides, over all messages and the sender's own contact.
[[nodiscard]] wire::Mac client_mac(const Secret& secret, const proof::Transcript& said,
                                   const Contact& contact);
[[nodiscard]] wire::Mac server_mac(const Secret& secret, const proof::Transcript& said,
                                   const Contact& contact);

}  // namespace tributary::ucx
