// The parts of a TOML file that make up a configuration: tables of keys with single values, and
// their lines.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tributary {

struct TomlEntry {
  enum class Kind { kTrue, kFalse, kNumber, kText, kOther };
  std::string table;
  std::string key;
  Kind kind = Kind::kOther;  // kOther: an array, a table, a date
  std::string text;          // the value as a flag takes it; of kOther: what it is
  int line = 0;
};

struct TomlFile {
  struct Table {
    std::string name;
    int line = 0;
  };
  std::vector<Table> tables;       // in the order of the file
  std::vector<TomlEntry> entries;  // likewise; those before the first table have an empty one
};

/// Throws kIo, and kMalformedInput (`FILE:LINE:COLUMN: ...`) for text that is not TOML or longer
/// than any configuration.
[[nodiscard]] TomlFile read_toml(const std::filesystem::path& path);
/// `text` as a TOML string, quotes included.
[[nodiscard]] std::string toml_string(std::string_view text);

}  // namespace tributary
