// Access to a sequence on the data plane: a token that only its pool can make.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tributary::wire {

/// 128 bits.
using Token = std::array<std::uint8_t, 16>;

/// Random bytes from the operating system. Throws kIo.
[[nodiscard]] Token random_token();
/// The first 128 bits of HMAC-SHA-256 (RFC 2104) of the id's eight little-endian bytes under `key`.
[[nodiscard]] Token access_token(const Token& key, std::uint64_t sequence_id);

/// 32 lower-case hexadecimal digits, and back; throws kMalformedInput.
[[nodiscard]] std::string token_text(const Token& token);
[[nodiscard]] Token parse_token(std::string_view text);

}  // namespace tributary::wire
