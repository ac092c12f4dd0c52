#include "deploy/app/up/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.h"

namespace tributary {
namespace {

/// Runs in the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void run_child(char* const* argv, int output, pid_t parent) {
  // NOLINTBEGIN(concurrency-mt-unsafe): a process of one thread.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it died before it could be watched
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execvp(argv[0], argv);
  constexpr char kText[] =
      "tributary: a program cannot be started\n";  // NOLINT(modernize-avoid-c-arrays)
  (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(127);
  // NOLINTEND(concurrency-mt-unsafe)
}

/// Parent of every process, by process id.
std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> result;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    std::ifstream file(entry.path() / "stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    // The format is `PID (NAME) STATE PPID ...`, and a name may hold any character.
    const std::size_t end = stat.rfind(") ");
    if (end == std::string::npos || end + 4 > stat.size()) continue;
    pid_t parent = 0;
    std::from_chars(stat.data() + end + 4, stat.data() + stat.size(), parent);
    result[pid] = parent;
  }
  return result;
}

std::vector<pid_t> descendants_of(pid_t ancestor) {
  const auto parent = parents();
  std::vector<pid_t> result;
  for (const auto& [pid, unused] : parent) {
    for (auto at = parent.find(pid); at != parent.end(); at = parent.find(at->second)) {
      if (at->second != ancestor) continue;
      result.push_back(pid);
      break;
    }
  }
  return result;
}

}  // namespace

std::string signal_text(int number) {
  const char* const name = sigdescr_np(number);
  return fmt::format("signal {} ({}){}", number, name == nullptr ? "unknown" : name,
                     number == SIGKILL ? ", which the kernel sends when memory runs out" : "");
}

ChildProcess::ChildProcess(std::string name, const std::vector<std::string>& arguments)
    : name_(std::move(name)) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));  // NOLINT: exec's old signature
  }
  argv.push_back(nullptr);
  std::array<int, 2> pipe{-1, -1};
  if (pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    fail(ErrorCode::kIo, "{}: no pipe: {}", name_, std::system_category().message(errno));
  }
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) run_child(argv.data(), pipe[1], parent);
  const int error = errno;
  close(pipe[1]);
  output_ = pipe[0];
  if (pid_ < 0) {
    close(output_);
    fail(ErrorCode::kIo, "{}: cannot be started: {}", name_, std::system_category().message(error));
  }
}

ChildProcess::~ChildProcess() {
  if (!ended()) {
    signal_descendants(SIGKILL);
    signal(SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);  // killed: it ends without its own cooperation
  }
  close(output_);
}

const std::optional<std::string>& ChildProcess::ended() {
  int status = 0;
  if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    const int exit = WEXITSTATUS(status);
    ended_ = WIFSIGNALED(status)               ? signal_text(WTERMSIG(status))
             : exit > 128 && exit < 128 + NSIG ? signal_text(exit - 128)
                                               : fmt::format("exit status {}", exit);
  }
  return ended_;
}

bool ChildProcess::wait(Deadline deadline) {
  // Exits are rare, and a few milliseconds of delay do not matter.
  constexpr std::chrono::milliseconds kPause{10};
  while (!ended()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

void ChildProcess::signal(int number) {
  if (!ended()) kill(pid_, number);
}

void ChildProcess::signal_descendants(int number) {
  if (ended()) return;
  for (const pid_t pid : descendants_of(pid_)) kill(pid, number);
}

std::string ChildProcess::read_output() const {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t bytes = read(output_, part.data(), part.size());
    if (bytes <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(bytes));
  }
  return text;
}

}  // namespace tributary
