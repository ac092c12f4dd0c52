// What two sides tell each other over a plain TCP connection before UCX is involved. Anybody may
// send these bytes, so every one is checked before UCX, which trusts its input, sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tributary::ucx {

/// The address of a UCX worker has about 100 bytes, and up to 100 more for each device.
inline constexpr std::size_t kMaxAddressBytes = 8192;

/// Both sides send the same. On the wire: magic (8 bytes), version (2), length of the address (2),
/// CRC-32C of everything else (4), label (8), address.
struct Introduction {
  std::uint64_t label = 0;         // messages to the sender of this begin with it
  std::vector<std::byte> address;  // of its UCX worker; 1 to kMaxAddressBytes
};

[[nodiscard]] std::vector<std::byte> encode(const Introduction& introduction);
/// Says that there is no place, instead of an introduction or after it: one without an address.
[[nodiscard]] std::vector<std::byte> encode_refusal();

/// How many bytes are needed, given the first ones: those of the whole introduction once its length
/// is known. Throws kMalformedInput as soon as `begin` cannot be the start of one, kUnsupported for
/// another version.
[[nodiscard]] std::size_t introduction_bytes(std::span<const std::byte> begin);

/// Decodes exactly one introduction. Throws as introduction_bytes does, kCorrupt for a wrong
/// checksum, and kPoolFull for a refusal.
[[nodiscard]] Introduction decode(std::span<const std::byte> bytes);

}  // namespace tributary::ucx
