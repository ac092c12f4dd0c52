// Writes the configuration file with every flag at its default.
#include <fmt/format.h>

#include <sstream>

#include "deploy/app/config/config_file.h"
#include "deploy/app/config/config_flags.h"

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

std::string setting(CLI::Option& option) {
  const std::string key = config_key(option);
  const bool alone = option.get_needs().empty() && option.get_excludes().empty();
  if (is_switch(option)) return fmt::format("{}{} = false\n", alone ? "" : "#", key);
  const std::string& value = option.get_default_str();
  const std::string& kind = option.get_option_text();
  if (value.empty() || !refusal(option, value).empty()) {
    return fmt::format("#{} = {}\n", key, toml_string(kind));
  }
  const bool number = kind == "N" || kind == "X";
  return fmt::format("{}{} = {}\n", alone ? "" : "#", key, number ? value : toml_string(value));
}

}  // namespace

std::string default_config(CLI::App& program) {
  std::string text = kHead;
  for (CLI::App* command : configurable_commands(program)) {
    text += fmt::format("\n# {}\n[{}]\n", command->get_description(), command->get_name());
    for (CLI::Option* option : configurable_options(*command)) {
      text += '\n' + comment(option->get_description()) + setting(*option);
    }
  }
  return text;
}

}  // namespace tributary
