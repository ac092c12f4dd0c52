// What two sides tell each other over a plain TCP connection before UCX knows of them: bytes from
// anybody, checked to the last one before UCX, which trusts what it is given, sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tributary::ucx {

/// A worker's address is some 100 bytes and up to 100 more for each device.
inline constexpr std::size_t kMaxAddressBytes = 8192;

/// The same from both sides. On the wire: 8 bytes that say what this is, version (2), length of the
/// address (2), CRC-32C of all the rest (4), label (8), address.
struct Introduction {
  std::uint64_t label = 0;         // the messages to who says this begin with it
  std::vector<std::byte> address;  // of its UCX worker; 1 to kMaxAddressBytes
};

[[nodiscard]] std::vector<std::byte> encode(const Introduction& introduction);

/// How many bytes there have to be before more can be told; the whole introduction's once its
/// length is there. Throws kMalformedInput as soon as `begin` does not begin one, kUnsupported for
/// another version.
[[nodiscard]] std::size_t introduction_bytes(std::span<const std::byte> begin);

/// All of its bytes and no more. Throws as introduction_bytes does, kCorrupt for a wrong checksum.
[[nodiscard]] Introduction decode(std::span<const std::byte> bytes);

}  // namespace tributary::ucx
