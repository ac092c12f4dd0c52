// The options of `tributary config`: one of them is given.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tributary {

struct ConfigOptions {
  std::optional<std::filesystem::path> check;
  bool print_defaults = false;
  std::string print_completion;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    v(check, "--check", "FILE", "Say everything that is wrong with this file, with its line");
    v(print_defaults, "--print-defaults",
      "Print a file with every flag of every command: its meaning, range and default");
    v(print_completion, "--print-completion", "bash|zsh",
      "Print a script with which this shell completes commands and flags");
  }
};

}  // namespace tributary
