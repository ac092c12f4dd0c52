#include "deploy/app/up/child_log.h"

#include <cstddef>

#include "deploy/app/up/up.h"

namespace tributary {
namespace {

/// An error line of this program: `tributary: CODE: text`.
std::optional<Status> read_error(std::string_view line) {
  constexpr std::string_view kStart = "tributary: ";
  if (!line.starts_with(kStart)) return std::nullopt;
  line.remove_prefix(kStart.size());
  for (int i = 1; i < kErrorCodes; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const std::string_view name = error_code_name(code);
    if (line.starts_with(name) && line.substr(name.size()).starts_with(": ")) {
      return Status(code, std::string(line.substr(name.size() + 2)));
    }
  }
  return std::nullopt;
}

}  // namespace

std::string ChildLog::pass_on(std::string_view output) {
  std::string lines;
  line_ += output;
  for (std::size_t end = line_.find('\n'); end != std::string::npos; end = line_.find('\n')) {
    const std::string line = line_.substr(0, end + 1);
    line_.erase(0, end + 1);
    const bool border = line.starts_with("-----------------------------");
    if (border) launcher_speaks_ = !launcher_speaks_;
    if (const auto error = read_error(std::string_view(line).substr(0, end))) {
      if (!error_) error_ = error;  // what came later follows from it
    } else if (!line.starts_with(kListeningOn) &&
               (launcher_too_ || !(border || launcher_speaks_))) {
      lines += line;
    }
  }
  return lines;
}

}  // namespace tributary
