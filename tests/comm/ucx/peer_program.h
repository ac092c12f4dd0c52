// ucx_peer_program as a child of a test.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tributary::testing_support {

/// With a pipe to and from it; killed at the end.
class PeerProgram {
 public:
  /// `environment`: "NAME=VALUE" each, besides the test's own.
  explicit PeerProgram(std::vector<std::string> arguments,
                       const std::vector<std::string>& environment = {});
  ~PeerProgram();
  PeerProgram(const PeerProgram&) = delete;
  PeerProgram& operator=(const PeerProgram&) = delete;

  void signal(int number) const;
  [[nodiscard]] std::string read_line() const;
  void write_line() const;
  /// Closes its standard input, which ends it, and waits for that. Returns its exit status, or
  /// minus the signal that ended it.
  [[nodiscard]] int end_input();

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

}  // namespace tributary::testing_support
