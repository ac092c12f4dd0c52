// The name of this machine.
#pragma once

#include <string>

namespace tributary {

/// `unknown` if the system does not say.
[[nodiscard]] std::string host_name();

}  // namespace tributary
