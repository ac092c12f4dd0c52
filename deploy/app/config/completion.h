// Completion of command lines in shells.
#pragma once

#include <span>
#include <string>

#include "deploy/options/option_table.h"

namespace tributary {

/// The script for `bash` or `zsh` that completes the commands, their flags and the values of flags
/// that name them. Throws kUnsupported for another shell.
[[nodiscard]] std::string completion_script(std::span<const CommandTable> program,
                                            const std::string& shell);

}  // namespace tributary
