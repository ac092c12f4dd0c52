// Runs one function on every worker of a pool: MPI ranks where a launcher started this process,
// threads of this process otherwise.
#pragma once

#include <functional>
#include <memory>

#include "core/interface/communicator.h"

namespace tributary {

/// Holds MPI initialised for the whole program where a launcher started it. Make one, in main.
class Launcher {
 public:
  Launcher(int* argc, char*** argv);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  [[nodiscard]] bool under_mpi() const noexcept { return under_mpi_; }
  /// True on the one process that talks to the user.
  [[nodiscard]] bool speaks() const noexcept;
  /// Whether what this process writes to stderr appears on a terminal.
  [[nodiscard]] bool stderr_is_terminal() const;

  /// Under a launcher `workers` must be 0 or the number of ranks; throws kInvalidArgument
  /// otherwise. Else that many threads (0: one). Returns when all have ended; throws the first
  /// exception.
  void run(int workers, const std::function<void(Communicator&)>& body) const;
  /// How many workers run() would start.
  [[nodiscard]] int workers(int requested) const;

 private:
  struct Environment;
  std::unique_ptr<Environment> environment_;
  bool under_mpi_ = false;
};

/// Compute threads for this rank: its share of the cores that its process may use, at least one. A
/// core that n ranks may use counts 1/n for each of them, so that ranks which the launcher bound to
/// cores of their own get all of these. A collective call.
[[nodiscard]] int threads_per_worker(Communicator& communicator);

}  // namespace tributary
