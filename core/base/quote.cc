// Quotes text from outside so that it is safe in an error message.
#include "core/base/quote.h"

#include <fmt/format.h>

#include <iterator>

namespace tributary {

std::string quote(std::string_view text, std::size_t max_chars) {
  std::string out = "'";
  for (const char c : text.substr(0, max_chars)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out.push_back(c);
    } else {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    }
  }
  out.push_back('\'');
  if (text.size() > max_chars) {
    fmt::format_to(std::back_inserter(out), "... ({} bytes)", text.size());
  }
  return out;
}

}  // namespace tributary
