// Initialises MPI once, and finalises it only when that cannot hang.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace tributary {

struct MpiState;

/// Name and version of the MPI library that is loaded: `Open MPI v4.1.4`. Needs no environment.
[[nodiscard]] std::string mpi_library_version();

/// Keeps MPI initialised (thread level MPI_THREAD_FUNNELED). All of comm/mpi is used on the thread
/// that made the environment.
///
/// The destructor finalises MPI if all ranks reach their destructors within a time limit. If they
/// do not (a peer was killed, or is stuck), MPI_Finalize could hang forever. Then the destructor
/// prints this on stderr and leaves MPI initialised; the process should exit soon, and mpirun ends
/// with an error.
class MpiEnvironment {
 public:
  struct Options {
    /// How long the destructor waits for the destructors of the other ranks.
    std::chrono::milliseconds finalize_timeout{60'000};
    /// The same, once a communicator of this process has failed: the others, whose deadlines pass
    /// at about the same time, still say why they end. A rank that has stopped never comes, and the
    /// job ends this much later.
    std::chrono::milliseconds finalize_timeout_after_failure{1'000};
  };

  /// MPI may remove its own flags from `argc` and `argv`. SIGPIPE is ignored from now on, unless it
  /// is handled: a send to a dead rank raises it over TCP. Throws kFailedPrecondition when MPI was
  /// initialised before, kUnsupported when the MPI library lacks the thread level. Without a
  /// launcher the process is the only rank.
  MpiEnvironment(int* argc, char*** argv, const Options& options);
  MpiEnvironment(int* argc, char*** argv) : MpiEnvironment(argc, argv, Options{}) {}
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
  ~MpiEnvironment();

  /// The rank among all processes that the launcher started.
  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;

  /// Internal to comm/mpi.
  [[nodiscard]] const std::shared_ptr<MpiState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<MpiState> state_;
  Options options_;
};

}  // namespace tributary
