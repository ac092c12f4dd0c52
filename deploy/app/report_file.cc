#include "deploy/app/report_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <system_error>

#include "core/base/error.h"

namespace tributary {
namespace {

constexpr auto kStdout = "-";

/// A device or a pipe is written to as it is.
std::filesystem::path beside(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool special =
      std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
  return special ? path : std::filesystem::path(fmt::format("{}.{}.part", path.string(), getpid()));
}

}  // namespace

void check_writable(const std::optional<std::filesystem::path>& path) {
  if (!path || *path == kStdout) return;
  const std::filesystem::path part = beside(*path);
  if (!std::ofstream(part, std::ios::app)) {
    fail(ErrorCode::kIo, "{}: cannot be written", path->string());
  }
  if (part != *path) std::filesystem::remove(part);
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path part = beside(path);
  std::ofstream file(part);
  file << text << '\n';
  file.close();
  std::error_code error;
  const bool written = static_cast<bool>(file);
  if (written && part != path) std::filesystem::rename(part, path, error);
  if (written && !error) return;
  std::error_code ignored;
  if (part != path) std::filesystem::remove(part, ignored);
  fail(ErrorCode::kIo, "{}: cannot be written", path.string());
}

void write_report(const std::optional<std::filesystem::path>& file, const std::string& text,
                  const std::string& json) {
  if (file == kStdout) {
    std::fputs(text.c_str(), stderr);
    fmt::print("{}\n", json);
    return;
  }
  fmt::print("{}", text);
  if (file) write_file(*file, json);
}

}  // namespace tributary
