// The part of a pool's run that may be shown. The run is a secret: who knows it can register in the
// pool's place.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

/// 16 hexadecimal digits that distinguish runs.
[[nodiscard]] std::string run_name(std::string_view run);

}  // namespace tributary
