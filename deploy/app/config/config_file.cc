#include "deploy/app/config/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

/// Counts the letters to change, add or leave out to turn one word into the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// `; is it 'token-file'?`, if one of the names is near enough to be meant.
std::string suggestion(std::string_view name, const std::vector<std::string>& known) {
  // The work is the product of the lengths; none of our names is half as long as this.
  constexpr std::size_t kLongest = 64;
  if (name.size() > kLongest || known.empty()) return "";
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& candidate) { return distance(name, candidate); });
  // With up to a third of its letters wrong a word is mistyped; with more it is another word.
  return distance(name, *nearest) <= std::max<std::size_t>(2, name.size() / 3)
             ? fmt::format("; is it {}?", quote(*nearest))
             : "";
}

/// The error of a flag's parser about a value; empty if it accepts the value.
std::string verdict(const OptionLine& option, const TomlEntry& entry) {
  if (entry.kind == TomlEntry::Kind::kOther) return fmt::format("{}, not a value", entry.text);
  const bool boolean =
      entry.kind == TomlEntry::Kind::kTrue || entry.kind == TomlEntry::Kind::kFalse;
  if (option.is_switch() && !boolean) {
    return fmt::format("{} is not true or false", quote(entry.text));
  }
  if (boolean && !option.is_switch()) {
    return fmt::format("{} is not a value of {}", quote(entry.text), option.name);
  }
  try {
    option.read(entry.text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Null where no command of that name may have a table.
const CommandTable* find(std::span<const CommandTable> program, std::string_view name) {
  const auto found = std::ranges::find_if(program, [&](const CommandTable& command) {
    return command.configurable && command.name == name;
  });
  return found == program.end() ? nullptr : &*found;
}

}  // namespace

std::optional<std::string> config_argument(std::span<const std::string> words) {
  constexpr std::string_view kFlag = "--config";
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    if (words[i] == kFlag && i + 1 < words.size()) return words[i + 1];
    if (words[i].starts_with(kFlag) && words[i].size() > kFlag.size() &&
        words[i][kFlag.size()] == '=') {
      return words[i].substr(kFlag.size() + 1);
    }
  }
  return std::nullopt;
}

ConfigFile::ConfigFile(const std::filesystem::path& path) : path_(path), file_(read_toml(path)) {}

std::string ConfigFile::at(int line, const std::string& text) const {
  return fmt::format("{}:{}: {}", path_.string(), line, text);
}

std::vector<std::string> ConfigFile::problems(std::span<const CommandTable> program) const {
  std::multimap<int, std::string> found;
  std::vector<std::string> names;
  for (const CommandTable& command : program) {
    if (command.configurable) names.push_back(command.name);
  }
  for (const TomlFile::Table& table : file_.tables) {
    if (find(program, table.name) == nullptr) {
      found.emplace(table.line, fmt::format("no command has the table [{}]{}", quote(table.name),
                                            suggestion(table.name, names)));
    }
  }
  for (const TomlEntry& entry : file_.entries) {
    if (entry.table.empty()) {
      found.emplace(entry.line,
                    fmt::format("{} stands in no table; the flags of `tributary control` belong "
                                "under [control]",
                                quote(entry.key)));
    }
    const CommandTable* command = find(program, entry.table);
    if (command == nullptr) continue;
    const OptionLine* option = command->find(entry.key);
    if (option == nullptr) {
      std::vector<std::string> keys;
      for (const OptionLine& known : command->options) {
        if (!known.positional()) keys.push_back(known.key());
      }
      found.emplace(entry.line, fmt::format("[{}] {}: no such flag{}", entry.table,
                                            quote(entry.key), suggestion(entry.key, keys)));
      continue;
    }
    if (const std::string wrong = verdict(*option, entry); !wrong.empty()) {
      found.emplace(entry.line, fmt::format("[{}] {}: {}", entry.table, entry.key, wrong));
    }
  }
  std::vector<std::string> lines;
  for (const auto& [line, text] : found) lines.push_back(at(line, text));
  return lines;
}

std::vector<std::string> ConfigFile::conflicts(std::span<const CommandTable> program) const {
  std::vector<std::string> lines;
  const auto has = [&](const TomlEntry& near, const std::string& name) {
    return std::ranges::any_of(file_.entries, [&](const TomlEntry& entry) {
      return entry.table == near.table && "--" + entry.key == name &&
             entry.kind != TomlEntry::Kind::kFalse;
    });
  };
  for (const TomlEntry& entry : file_.entries) {
    if (entry.kind == TomlEntry::Kind::kFalse) continue;
    const CommandTable* command = find(program, entry.table);
    const OptionLine* option = command != nullptr ? command->find(entry.key) : nullptr;
    if (option == nullptr) continue;
    const auto add = [&](const char* verb, const std::string& other) {
      lines.push_back(at(entry.line, fmt::format("[{}] {}: {} {}", entry.table, entry.key, verb,
                                                 other.substr(2))));
    };
    for (const std::string& other : option->needs) {
      if (!has(entry, other)) add("needs", other);
    }
    for (const std::string& other : option->excludes) {
      if (has(entry, other)) add("makes no sense beside", other);
    }
  }
  return lines;
}

std::vector<std::string> ConfigFile::words(const std::string& command,
                                           std::span<const std::string> given) const {
  const auto end = std::ranges::find(given, "--");
  std::vector<std::string> words;
  for (const TomlEntry& entry : file_.entries) {
    if (entry.table != command || entry.kind == TomlEntry::Kind::kFalse) continue;
    const std::string flag = "--" + entry.key;
    const bool on_command_line = std::any_of(given.begin(), end, [&](const std::string& word) {
      return word == flag || word.starts_with(flag + "=");
    });
    if (on_command_line) continue;
    words.push_back(entry.kind == TomlEntry::Kind::kTrue ? flag : flag + "=" + entry.text);
  }
  return words;
}

}  // namespace tributary
