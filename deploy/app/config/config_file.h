// The program's flags from a configuration file: a table for each command, a key for each flag.
// Each command's table of options gives a flag's name, values and default.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deploy/app/config/toml_file.h"
#include "deploy/options/option_table.h"

namespace tributary {

/// The FILE of `--config FILE` or `--config=FILE` among the words that follow a command.
[[nodiscard]] std::optional<std::string> config_argument(std::span<const std::string> words);

class ConfigFile {
 public:
  /// Throws as read_toml().
  explicit ConfigFile(const std::filesystem::path& path);

  /// The errors in the file, by line, each as `FILE:LINE: [TABLE] KEY: ...`. Values are judged by
  /// reading them into the fields of `program`.
  [[nodiscard]] std::vector<std::string> problems(std::span<const CommandTable> program) const;
  /// Flags of one table that others in it need or exclude.
  [[nodiscard]] std::vector<std::string> conflicts(std::span<const CommandTable> program) const;

  /// The table of `command` as words of a command line, without the flags that `given` has: the
  /// command line wins.
  [[nodiscard]] std::vector<std::string> words(const std::string& command,
                                               std::span<const std::string> given) const;

  [[nodiscard]] std::size_t tables() const noexcept { return file_.tables.size(); }
  [[nodiscard]] std::size_t keys() const noexcept { return file_.entries.size(); }

 private:
  [[nodiscard]] std::string at(int line, const std::string& text) const;

  std::filesystem::path path_;
  TomlFile file_;
};

/// A file with every flag of every command that may have a table: what it means, its range, its
/// default.
[[nodiscard]] std::string default_config(std::span<const CommandTable> program);

}  // namespace tributary
