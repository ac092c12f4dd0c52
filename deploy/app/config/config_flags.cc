#include "deploy/app/config/config_flags.h"

namespace tributary {
namespace {

bool configurable(const CLI::Option& option) {
  return option.get_configurable() && !option.get_positional() && !option.get_lnames().empty();
}

}  // namespace

std::vector<CLI::App*> configurable_commands(CLI::App& program) {
  return program.get_subcommands(
      [](CLI::App* command) { return command->get_option_no_throw("--config") != nullptr; });
}

CLI::App* configurable_command(CLI::App& program, std::string_view name) {
  for (CLI::App* command : configurable_commands(program)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

std::vector<CLI::Option*> configurable_options(CLI::App& command) {
  return command.get_options([](CLI::Option* option) { return configurable(*option); });
}

std::string config_key(const CLI::Option& option) {
  return option.get_lnames().front();
}

CLI::Option* config_option(CLI::App& command, std::string_view key) {
  CLI::Option* option = command.get_option_no_throw("--" + std::string(key));
  return option != nullptr && configurable(*option) ? option : nullptr;
}

bool is_switch(const CLI::Option& option) {
  return option.get_expected_max() == 0;
}

std::string refusal(CLI::Option& option, const std::string& text) {
  std::string reason;
  try {
    option.clear();
    option.add_result(text);
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    reason = error.what();
    // The flag's name is removed: the caller has its own form of it.
    const std::string name = "--" + config_key(option) + ": ";
    if (reason.starts_with(name)) reason.erase(0, name.size());
  }
  option.clear();
  return reason;
}

}  // namespace tributary
