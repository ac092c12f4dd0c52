// A program that this one started. It is in its own process group, so that a terminal's Ctrl-C
// reaches this program alone, and it is ended when this one dies.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "core/base/deadline.h"

namespace tributary {

/// `signal 9 (Killed), which the kernel sends when memory runs out`.
[[nodiscard]] std::string signal_text(int number);

class ChildProcess {
 public:
  /// Messages use `name`. Throws kIo if it cannot be started.
  ChildProcess(std::string name, const std::vector<std::string>& arguments);
  /// Kills it and its descendants if they still run.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Its end in words: `exit status 1`, `signal 15 (Terminated)`; no value while it runs. A status
  /// above 128 is a signal, as shells and mpirun pass it on.
  [[nodiscard]] const std::optional<std::string>& ended();
  /// Waits for its end; returns false at the deadline.
  bool wait(Deadline deadline);
  /// Sends a signal to the process, if it runs.
  void signal(int number);
  /// Sends a signal to all processes that it started, directly or not, if it runs.
  void signal_descendants(int number);
  /// The text that it wrote to stdout and stderr since the last call, without waiting.
  [[nodiscard]] std::string read_output() const;

 private:
  std::string name_;
  pid_t pid_ = -1;
  int output_ = -1;
  std::optional<std::string> ended_;
};

}  // namespace tributary
