// The checksum of payloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tributary::wire {

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of the bytes, continued from `crc` of those before.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tributary::wire
