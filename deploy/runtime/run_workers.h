// Runs one function on every worker of a pool: MPI ranks where a launcher started this process,
// threads of this process otherwise.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>

#include "core/interface/communicator.h"

namespace tributary {

/// Keeps MPI initialised for the whole program if a launcher started it. Make one, in main.
class Launcher {
 public:
  Launcher(int* argc, char*** argv);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  [[nodiscard]] bool under_mpi() const noexcept { return under_mpi_; }
  /// True on the one process that talks to the user.
  [[nodiscard]] bool speaks() const noexcept;
  /// The user's terminal: stderr if that is one, or that of the launcher on this host, which reads
  /// its ranks' stderr through pipes. Null if there is none. Text that a rank draws there without a
  /// line's end bypasses the launcher: Open MPI 5 mixes it into the ranks' stdout.
  [[nodiscard]] std::FILE* terminal() const noexcept { return terminal_.get(); }

  /// Under a launcher `workers` must be 0 or the number of ranks; throws kInvalidArgument
  /// otherwise. Without one, it runs that many threads (0: one). Returns when all have ended;
  /// throws the first exception.
  void run(int workers, const std::function<void(Communicator&)>& body) const;
  /// How many workers run() would start.
  [[nodiscard]] int workers(int requested) const;

 private:
  struct Environment;
  std::unique_ptr<Environment> environment_;
  bool under_mpi_ = false;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> terminal_;
};

/// Runs the function on the one worker of this process. The others hear of what it throws.
void run_worker_of(Communicator& communicator, const std::function<void(Communicator&)>& body);

/// Compute threads for this rank: share_of_cores() among all ranks. A collective call.
[[nodiscard]] int threads_per_worker(Communicator& communicator, Deadline deadline);
/// As above, within a minute.
[[nodiscard]] int threads_per_worker(Communicator& communicator);

}  // namespace tributary
