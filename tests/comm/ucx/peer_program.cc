#include "tests/comm/ucx/peer_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace tributary::testing_support {

PeerProgram::PeerProgram(std::vector<std::string> arguments,
                         const std::vector<std::string>& environment) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  EXPECT_EQ(pipe2(in.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  arguments.insert(arguments.begin(), TRIBUTARY_UCX_PEER_PROGRAM);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<std::string> settings = environment;
  std::vector<char*> envp;
  for (std::string& variable : settings) envp.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) envp.push_back(*variable);
  envp.push_back(nullptr);
  EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  in_ = in[1];
  out_ = out[0];
}

PeerProgram::~PeerProgram() {
  if (pid_ >= 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (in_ >= 0) close(in_);
  close(out_);
}

void PeerProgram::signal(int number) const {
  EXPECT_EQ(kill(pid_, number), 0);
}

std::string PeerProgram::read_line() const {
  std::string line;
  char byte = 0;
  while (read(out_, &byte, 1) == 1 && byte != '\n') line += byte;
  return line;
}

void PeerProgram::write_line() const {
  EXPECT_EQ(write(in_, "\n", 1), 1);
}

int PeerProgram::end_input() {
  close(std::exchange(in_, -1));
  const pid_t pid = std::exchange(pid_, -1);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace tributary::testing_support
