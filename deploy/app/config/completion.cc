#include "deploy/app/config/completion.h"

#include <fmt/format.h>

#include <cctype>
#include <string_view>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

/// `auto tcp` of `auto|tcp`; empty where any value may follow.
std::string choices(const OptionLine& line) {
  if (line.value.find('|') == std::string::npos) return "";
  std::string words;
  for (const char c : line.value) {
    if (std::isupper(static_cast<unsigned char>(c)) != 0) return "";  // NAME|FILE
    words += c == '|' ? ' ' : c;
  }
  return words;
}

std::string command_names(std::span<const CommandTable> program) {
  std::string names = "help";
  for (const CommandTable& command : program) names += ' ' + command.name;
  return names;
}

std::string bash_script(std::span<const CommandTable> program) {
  std::string values;
  std::string flags;
  for (const CommandTable& command : program) {
    std::string names = "--help";
    if (command.configurable) names += " --config";
    for (const OptionLine& line : command.options) {
      if (line.positional()) continue;
      names += ' ' + line.name;
      const std::string words = choices(line);
      if (!words.empty()) {
        values += fmt::format("    '{} {}') words='{}' ;;\n", command.name, line.name, words);
      }
    }
    flags += fmt::format("      {}) words='{}' ;;\n", command.name, names);
  }
  return fmt::format(
      "# Completion of tributary in bash: `tributary config --print-completion bash`.\n"
      "_tributary() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]-}} words=\n"
      "  COMPREPLY=()\n"
      "  if ((COMP_CWORD == 1)) || [[ $COMP_CWORD == 2 && $command == help ]]; then\n"
      "    words='{}'\n"
      "  else\n"
      "    case \"$command ${{COMP_WORDS[COMP_CWORD - 1]}}\" in\n{}    esac\n"
      "    [[ -n $words || $current != -* ]] || case $command in\n{}    esac\n"
      "  fi\n"
      "  if [[ -n $words ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
      "  else\n"
      "    compopt -o filenames 2>/dev/null\n"
      "    mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
      "  fi\n"
      "}}\n"
      "complete -F _tributary tributary\n",
      command_names(program), values, flags);
}

/// A text inside _arguments' brackets, inside single quotes.
std::string zsh_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'') {
      escaped += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
      escaped += c;
    }
  }
  return escaped;
}

std::string zsh_script(std::span<const CommandTable> program) {
  std::string commands;
  std::string flags;
  for (const CommandTable& command : program) {
    commands += fmt::format("    '{}:{}'\n", command.name, zsh_text(command.description));
    flags += fmt::format("    {})\n      _arguments '--help[Show its help]'", command.name);
    if (command.configurable) flags += " '--config[Take flags from a file]:FILE:_files'";
    for (const OptionLine& line : command.options) {
      flags += " \\\n        ";
      if (line.positional()) {
        flags += fmt::format("'*:{}:_files'", zsh_text(line.name));
        continue;
      }
      const std::string words = choices(line);
      flags += fmt::format("'{}[{}]{}'", line.name, zsh_text(line.help),
                           line.is_switch() ? ""
                           : words.empty()  ? fmt::format(":{}:_files", zsh_text(line.value))
                                            : fmt::format(":value:({})", words));
    }
    flags += " ;;\n";
  }
  return fmt::format(
      "#compdef tributary\n"
      "# Completion of tributary in zsh: `tributary config --print-completion zsh`.\n"
      "local -a commands=(\n    'help:A help'\n{}  )\n"
      "if ((CURRENT == 2)) || [[ $CURRENT == 3 && $words[2] == help ]]; then\n"
      "  _describe command commands\n"
      "else\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  case $command in\n{}  esac\n"
      "fi\n",
      commands, flags);
}

}  // namespace

std::string completion_script(std::span<const CommandTable> program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  fail(ErrorCode::kUnsupported, "no completion for {}; there are bash and zsh", quote(shell));
}

}  // namespace tributary
