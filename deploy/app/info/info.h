// `tributary info`: the abilities of this build on this machine.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

/// `0.1.0`.
[[nodiscard]] std::string_view version() noexcept;

/// Version, instruction sets, backends and communicators, the versions of its libraries at run time
/// and at build time, shape presets with bytes per token.
[[nodiscard]] std::string info_text();

}  // namespace tributary
