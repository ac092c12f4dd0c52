// deploy/mpirun.sh as it was when the program was built: an installed program has no other copy.
#pragma once

#include <string_view>

namespace tributary {

[[nodiscard]] std::string_view mpirun_script() noexcept;

}  // namespace tributary
