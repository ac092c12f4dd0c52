#include "deploy/app/up/child_log.h"

#include <array>
#include <cstddef>
#include <regex>

#include "deploy/app/up/child_process.h"
#include "deploy/app/up/up.h"

namespace tributary {
namespace {

constexpr std::size_t kMaxWords = 16'384;

/// What mpirun says of a machine that it cannot work on, and what that means.
struct Cause {
  std::string_view words;
  ErrorCode code;
  std::string_view meaning;
};
constexpr std::array kCauses{
    Cause{"There are not enough slots available", ErrorCode::kInvalidArgument,
          "the batch system's allocation, or the hosts given, have fewer tasks than --workers"},
    Cause{"not enough space for /dev/shm", ErrorCode::kIo,
          "/dev/shm is too small: Open MPI takes 4 MiB of it for each worker (containers: "
          "--shm-size)"},
    Cause{"unable to find network interfaces", ErrorCode::kIo,
          "mpirun finds no IPv4 address on this machine, not even 127.0.0.1, and it needs one"},
    Cause{"number of pipes a process can open", ErrorCode::kIo,
          "too few descriptors for mpirun (ulimit -n)"},
    Cause{"number of children a process can have", ErrorCode::kIo,
          "too few processes are allowed for mpirun (the container's pids.max, ulimit -u)"},
};

/// An error line of this program, `tributary: CODE: text` or `tributary: ended by EXCEPTION`, or of
/// the script that starts mpirun.
std::optional<Status> read_error(std::string_view line) {
  constexpr std::string_view kScript = "mpirun.sh: ";
  if (line.starts_with(kScript)) {
    return Status(ErrorCode::kIo, std::string(line.substr(kScript.size())));
  }
  constexpr std::string_view kStart = "tributary: ";
  if (!line.starts_with(kStart)) return std::nullopt;
  line.remove_prefix(kStart.size());
  if (line.starts_with("ended by ")) return Status(ErrorCode::kUnavailable, std::string(line));
  for (int i = 1; i < kErrorCodes; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const std::string_view name = error_code_name(code);
    if (line.starts_with(name) && line.substr(name.size()).starts_with(": ")) {
      return Status(code, std::string(line.substr(name.size() + 2)));
    }
  }
  return std::nullopt;
}

bool is_launchers(const std::string& line) {
  static const std::regex kLauncher(R"((\[[^\]\s]+:\d+\] |(mpirun|prterun): )[^]*)");
  return std::regex_match(line, kLauncher);
}

/// "process rank 1 with PID 30159 on node vm exited on signal 9 (Killed)"
std::optional<Status> read_signal(const std::string& words) {
  static const std::regex kSignal(R"(process rank (\d{1,6}) [^()]* exited on signal (\d{1,3}))");
  std::smatch found;
  if (!std::regex_search(words, found, kSignal)) return std::nullopt;
  return Status(ErrorCode::kUnavailable, fmt::format("worker {} was ended by {}", found[1].str(),
                                                     signal_text(std::stoi(found[2]))));
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
    } else if (border || launcher_speaks_ || is_launchers(line)) {
      if (launcher_.size() < kMaxWords) launcher_ += line.substr(0, end) + ' ';
      if (launcher_too_) lines += line;
    } else if (!line.starts_with(kListeningOn)) {
      lines += line;
    }
  }
  return lines;
}

std::optional<Status> ChildLog::reason() const {
  if (auto signal = read_signal(launcher_)) return signal;
  if (error_) return error_;
  for (const Cause& cause : kCauses) {
    if (launcher_.find(cause.words) != std::string::npos) {
      return Status(cause.code, std::string(cause.meaning));
    }
  }
  return std::nullopt;
}

}  // namespace tributary
