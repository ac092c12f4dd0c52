// The bearer token of a tier, as a file: the control plane asks for it, and the others show it.
#pragma once

#include <string>

namespace tributary {

/// The token in a file, without the white space around it. Throws kIo for a file that cannot be
/// read, kInvalidArgument for a token of less than 16 or more than 4096 characters or with
/// characters that a header may not carry. A file that every user of the machine can read is
/// accepted, with a warning on stderr: a container's mounted secret is readable by default.
[[nodiscard]] std::string read_token_file(const std::string& path);

}  // namespace tributary
