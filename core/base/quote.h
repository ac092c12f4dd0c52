// Quotes text from outside so that it is safe in an error message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tributary {

/// `'text'`, with everything but printable ASCII escaped as \xNN, and cut after `max_chars`
/// characters of the input: a hostile name can neither flood a log nor drive a terminal.
[[nodiscard]] std::string quote(std::string_view text, std::size_t max_chars = 80);

}  // namespace tributary
