#include "core/base/hex.h"

#include <cstddef>

#include "core/base/error.h"

namespace tributary {

std::string hex_text(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value >> 4U];
    text += kDigits[value & 0xfU];
  }
  return text;
}

std::string parse_hex(std::string_view text, std::string_view what) {
  const auto digit = [&](char c) -> unsigned {
    if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
    fail(ErrorCode::kMalformedInput, "{}: not lower-case hexadecimal digits", what);
  };
  if (text.size() % 2 != 0) {
    fail(ErrorCode::kMalformedInput, "{}: {} hexadecimal digits, expected two for each byte", what,
         text.size());
  }
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes += static_cast<char>(16 * digit(text[i]) + digit(text[i + 1]));
  }
  return bytes;
}

}  // namespace tributary
