// Bytes as text.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

/// Two lower-case hexadecimal digits for each byte.
[[nodiscard]] std::string hex_text(std::string_view bytes);
/// The bytes again; throws kMalformedInput, with `what` and without the text, which may be a
/// secret.
[[nodiscard]] std::string parse_hex(std::string_view text, std::string_view what);

}  // namespace tributary
