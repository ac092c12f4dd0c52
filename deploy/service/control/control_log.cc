#include "deploy/service/control/control_log.h"

#include <fmt/chrono.h>

#include <chrono>
#include <string>

#include "core/base/line_writer.h"

namespace tributary {

namespace {

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "UNKNOWN";
}

std::string printable(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace

void write_log(LogLevel level, std::string_view text) {
  using std::chrono::system_clock;
  const auto now = system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  // One write per line: other processes of `tributary up` share the stream.
  stderr_lines().write(fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z {} {}",
                                   fmt::gmtime(system_clock::to_time_t(now)), ms, level_name(level),
                                   printable(text)));
}

}  // namespace tributary
