// A child process and two pipes.
#include "bench/peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace tributary::bench {

std::optional<Peer> Peer::start(const std::string& path, const std::string& script) {
  std::array<int, 2> down{};
  std::array<int, 2> up{};
  if (pipe2(down.data(), O_CLOEXEC) != 0) fail(ErrorCode::kIo, "cannot make a pipe to a child");
  if (pipe2(up.data(), O_CLOEXEC) != 0) fail(ErrorCode::kIo, "cannot make a pipe from a child");
  // A dead child is an error of ask() and must not kill this process.
  (void)std::signal(SIGPIPE, SIG_IGN);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, up[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // Huge pages for its tensors, as for our cache.
  std::string tunables = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    // Each line sets its number of threads.
    if (!std::string_view(*entry).starts_with("OMP_NUM_THREADS=")) environment.push_back(*entry);
  }
  environment.push_back(tunables.data());
  environment.push_back(nullptr);
  std::string program = path;
  std::string file = script;
  const std::array<char*, 3> arguments = {program.data(), file.data(), nullptr};
  pid_t child = 0;
  const int failed =
      posix_spawn(&child, path.c_str(), &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(down[0]);
  close(up[1]);
  Peer peer(failed == 0 ? child : 0, fdopen(down[1], "w"), fdopen(up[0], "r"));
  constexpr std::string_view kReady = "ready ";
  const auto greeting = peer.read_line();
  if (failed != 0 || !greeting || !greeting->starts_with(kReady)) return std::nullopt;
  peer.version_ = greeting->substr(kReady.size());
  return peer;
}

Peer::Peer(Peer&& other) noexcept
    : child_(std::exchange(other.child_, 0)),
      to_(std::exchange(other.to_, nullptr)),
      from_(std::exchange(other.from_, nullptr)),
      version_(std::move(other.version_)) {}

Peer::~Peer() {
  if (to_ != nullptr) (void)std::fclose(to_);  // closes its input
  if (from_ != nullptr) (void)std::fclose(from_);
  if (child_ != 0) waitpid(child_, nullptr, 0);
}

std::optional<std::string> Peer::read_line() {
  std::array<char, 256> line{};
  if (std::fgets(line.data(), line.size(), from_) == nullptr) return std::nullopt;
  std::string text = line.data();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

double Peer::ask(const std::string& line) {
  std::fputs((line + "\n").c_str(), to_);
  (void)std::fflush(to_);
  const auto answer = read_line();
  double seconds = 0;
  if (!answer ||
      std::from_chars(answer->data(), answer->data() + answer->size(), seconds).ec != std::errc()) {
    fail(ErrorCode::kIo, "the peer did not answer {} with a number", line);
  }
  return seconds;
}

}  // namespace tributary::bench
