// The address of this machine that a worker listens on. The workers of a pool on several machines
// get the same text, so the text may name a network instead of one machine's address in it.
#pragma once

#include <string>

namespace tributary {

/// `text` is an address ("10.0.0.2", "fd00::2"), which is returned unchanged; a network
/// ("10.0.0.0/24"), for this machine's address in it; or a network device ("eth0"), for its
/// address, IPv4 if it has both. Throws kInvalidArgument if this machine has none, or several.
[[nodiscard]] std::string local_address(const std::string& text);

}  // namespace tributary
