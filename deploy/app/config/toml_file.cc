#include "deploy/app/config/toml_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

// Every flag of the program with its comment is some 20 KB; a longer file is not a configuration.
constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  if (!file || std::filesystem::is_directory(path)) {
    fail(ErrorCode::kIo, "{}: cannot be read", path.string());
  }
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail(ErrorCode::kIo, "{}: cannot be read", path.string());
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxBytes) {
    fail(ErrorCode::kMalformedInput, "{}: more than {} bytes, which is no configuration",
         path.string(), kMaxBytes);
  }
  return text;
}

TomlEntry entry(const std::string& table, std::string_view key, const toml::node& node) {
  TomlEntry entry{.table = table,
                  .key = std::string(key),
                  .kind = TomlEntry::Kind::kOther,
                  .text = {},
                  .line = static_cast<int>(node.source().begin.line)};
  if (const auto* flag = node.as_boolean()) {
    entry.kind = flag->get() ? TomlEntry::Kind::kTrue : TomlEntry::Kind::kFalse;
    entry.text = flag->get() ? "true" : "false";
  } else if (const auto* whole = node.as_integer()) {
    entry.kind = TomlEntry::Kind::kNumber;
    entry.text = fmt::format("{}", whole->get());
  } else if (const auto* real = node.as_floating_point()) {
    entry.kind = TomlEntry::Kind::kNumber;
    entry.text = fmt::format("{}", real->get());
  } else if (const auto* text = node.as_string()) {
    entry.kind = TomlEntry::Kind::kText;
    entry.text = text->get();
  } else {
    entry.text = node.is_array() ? "an array" : node.is_table() ? "a table" : "a date or time";
  }
  return entry;
}

}  // namespace

TomlFile read_toml(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  toml::table root;
  try {
    root = toml::parse(text, path.string());
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::kMalformedInput, "{}:{}:{}: {}", path.string(), error.source().begin.line,
         error.source().begin.column, quote(error.description()));
  }
  TomlFile file;
  for (const auto& [name, node] : root) {
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      file.entries.push_back(entry("", name.str(), node));
      continue;
    }
    file.tables.push_back({std::string(name.str()), static_cast<int>(table->source().begin.line)});
    for (const auto& [key, value] : *table) {
      file.entries.push_back(entry(std::string(name.str()), key.str(), value));
    }
  }
  // The library sorts by name.
  std::ranges::stable_sort(file.tables, {}, &TomlFile::Table::line);
  std::ranges::stable_sort(file.entries, {}, &TomlEntry::line);
  return file;
}

std::string toml_string(std::string_view text) {
  std::ostringstream out;
  out << toml::value<std::string>(std::string(text));
  return out.str();
}

}  // namespace tributary
