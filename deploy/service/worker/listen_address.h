// The address of this machine that a worker listens on. The workers of a pool on several machines
// are told the same words, so these may name a network instead of one machine's address in it.
#pragma once

#include <string>

namespace tributary {

/// `text` is an address ("10.0.0.2", "fd00::2"), which is returned as it is; a network
/// ("10.0.0.0/24"), for this machine's address in it; or a network device ("eth0"), for its
/// address, IPv4 where it has both. Throws kInvalidArgument when this machine has none, or several.
[[nodiscard]] std::string local_address(const std::string& text);

}  // namespace tributary
