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

/// Compute threads for each of `workers` on this machine: its share of the cores that this process
/// may use, at least one. Under a launcher the workers are those of this host.
[[nodiscard]] int threads_per_worker(int workers);

}  // namespace tributary
