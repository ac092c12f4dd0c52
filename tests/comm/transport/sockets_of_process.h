// The addresses that this process listens on, from /proc.
#pragma once

#include <string>
#include <vector>

namespace tributary::testing_support {

/// "127.0.0.1:7070", of every TCP socket that this process has opened and that listens; IPv6 as
/// "[...]:7070".
[[nodiscard]] std::vector<std::string> listening_addresses();

}  // namespace tributary::testing_support
