// The machine on which something was measured.
#pragma once

#include <string>

namespace tributary {

/// `AMD EPYC 9755 128-Core Processor, 2 CPUs usable`.
[[nodiscard]] std::string processor_name();

}  // namespace tributary
