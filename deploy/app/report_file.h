// Files that a command writes its report to, beside the text on stdout.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tributary {

/// Throws kIo unless `path` can be written; called before the work whose result goes there. Leaves
/// no file behind.
void check_writable(const std::optional<std::filesystem::path>& path);

/// Writes beside `path` and renames, so that a file is whole or not there. Throws kIo.
void write_file(const std::filesystem::path& path, const std::string& text);

/// Prints `text`, and writes `json` to the file, if there is one. With the file `-` stdout gets
/// the JSON and nothing else, and stderr the text.
void write_report(const std::optional<std::filesystem::path>& file, const std::string& text,
                  const std::string& json);

}  // namespace tributary
