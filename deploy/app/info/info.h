// `tributary info`: what this build can do on this machine.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

/// `0.1.0`.
[[nodiscard]] std::string_view version() noexcept;

/// Version, instruction sets, backends and communicators, the versions of what it runs with and was
/// built with, shape presets with bytes per token.
[[nodiscard]] std::string info_text();

}  // namespace tributary
