// The flags of the command line that a configuration file may set, and their parsers' errors.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tributary {

/// Commands with `--config`.
[[nodiscard]] std::vector<CLI::App*> configurable_commands(CLI::App& program);
/// Null if no command of that name has `--config`.
[[nodiscard]] CLI::App* configurable_command(CLI::App& program, std::string_view name);
/// Flags of a command that a file may set, in the order of its help.
[[nodiscard]] std::vector<CLI::Option*> configurable_options(CLI::App& command);
/// `token-file` of `--token-file`.
[[nodiscard]] std::string config_key(const CLI::Option& option);
/// Null if the command has no such flag for a file.
[[nodiscard]] CLI::Option* config_option(CLI::App& command, std::string_view key);
/// Whether the flag has no value.
[[nodiscard]] bool is_switch(const CLI::Option& option);
/// The reason why the flag's parser rejects `text`; empty if it accepts it and has changed the
/// flag's target.
[[nodiscard]] std::string refusal(CLI::Option& option, const std::string& text);

}  // namespace tributary
