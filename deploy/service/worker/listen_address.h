// The address of this machine that a worker listens on. The workers of a pool on several machines
// get the same text, so the text may name a network instead of one machine's address in it.
#pragma once

#include <string>
#include <string_view>

#include "core/interface/communicator.h"

namespace tributary {

/// `text` is an address ("10.0.0.2", "fd00::2"), which is returned unchanged; a network
/// ("10.0.0.0/24"), for this machine's address in it; or a network device ("eth0"), for its
/// address, IPv4 if it has both. Throws kInvalidArgument if this machine has none, or several.
[[nodiscard]] std::string local_address(const std::string& text);

/// "HOST:PORT", with brackets around an IPv6 address.
[[nodiscard]] std::string with_port(const std::string& host, std::string_view port);

/// `bound` ("tcp://10.0.0.1:7070") with `host` in the place of its own, unless that is empty.
[[nodiscard]] std::string advertised_address(const std::string& host, const std::string& bound);

/// This rank's address in the first network of rank 0's machine in which every rank has an address
/// that is its machine's alone; the loopback address where all are on one machine. A collective
/// call; throws kInvalidArgument on every rank where there is no such network.
[[nodiscard]] std::string shared_address(Communicator& communicator, Deadline deadline);

}  // namespace tributary
