// Writes the configuration file with every flag at its default.
#include <fmt/format.h>

#include <sstream>

#include "deploy/app/config/config_file.h"

namespace tributary {
namespace {

constexpr auto kHead =
    "# Configuration of Tributary: a table for each command, a key for each of its flags.\n"
    "# `tributary control --config FILE` reads [control]; flags of the command line win.\n"
    "# `tributary config --check FILE` says what is wrong with a file. A flag that has no "
    "default,\n"
    "# or that only makes sense beside another, is commented out.\n";

/// Comment lines of at most 100 columns.
std::string comment(const std::string& text) {
  constexpr std::size_t kWidth = 100;
  constexpr char kMark = '#';
  std::istringstream words(text);
  std::string lines;
  std::string line(1, kMark);
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kWidth) {
      lines += line + '\n';
      line = std::string(1, kMark);
    }
    line += ' ' + word;
  }
  return lines + line + '\n';
}

std::string setting(const OptionLine& option) {
  const std::string& value = option.default_text;
  const bool literal = option.is_switch() || option.is_number();
  const bool alone = option.needs.empty() && option.excludes.empty();
  return fmt::format("{}{} = {}\n", alone && !value.empty() ? "" : "#", option.key(),
                     value.empty() ? toml_string(option.value)
                     : literal     ? value
                                   : toml_string(value));
}

}  // namespace

std::string default_config(std::span<const CommandTable> program) {
  std::string text = kHead;
  for (const CommandTable& command : program) {
    if (!command.configurable) continue;
    text += fmt::format("\n# {}\n[{}]\n", command.description, command.name);
    for (const OptionLine& option : command.options) {
      if (!option.positional()) text += '\n' + comment(option.help) + setting(option);
    }
  }
  return text;
}

}  // namespace tributary
