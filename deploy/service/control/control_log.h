// The control plane's log for its operator: one line per event, on stderr, with time and level.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace tributary {

enum class LogLevel { kInfo, kWarning, kError };
/// Where events go; write_log() in the program.
using ControlLog = std::function<void(LogLevel, std::string_view text)>;

/// `2026-01-31T12:00:00.123Z WARNING text`; control characters in the text are escaped, since names
/// and addresses come from outside. Never waits: see LineWriter.
void write_log(LogLevel level, std::string_view text);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tributary
