// Message authentication codes, and random bytes for keys and nonces.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace tributary::wire {

/// HMAC-SHA-256 (RFC 2104).
using Mac = std::array<std::uint8_t, 32>;

[[nodiscard]] Mac mac(std::span<const std::uint8_t> key, std::span<const std::uint8_t> bytes);
/// Comparison in constant time; the sizes are not secret.
[[nodiscard]] bool same_bytes(std::span<const std::uint8_t> a,
                              std::span<const std::uint8_t> b) noexcept;
/// Fills the bytes from the operating system. Throws kIo.
void fill_random(std::span<std::uint8_t> bytes);

}  // namespace tributary::wire
