// MPI's life in this process: initialised once, and finalised only when that cannot hang.
#pragma once

#include <chrono>
#include <memory>

namespace tributary {

/// Holds MPI initialised (thread level MPI_THREAD_FUNNELED). Everything of comm/mpi happens on the
/// thread that made the environment.
///
/// The destructor finalises MPI when all ranks come to it within a time limit. When they do not (a
/// peer was killed, or is stuck), MPI_Finalize could hang for ever: the destructor then says so on
/// stderr and leaves MPI as it is; the process should exit soon, and mpirun ends with an error.
class MpiEnvironment {
 public:
  struct Options {
    /// How long the destructor waits for the other ranks' destructors.
    std::chrono::milliseconds finalize_timeout{60'000};
    /// The same, once a communicator of this process has failed.
    std::chrono::milliseconds finalize_timeout_after_failure{5'000};
  };

  /// MPI may take its own flags out of `argc` and `argv`. Throws kFailedPrecondition when MPI was
  /// initialised before, kUnsupported when the MPI library lacks the thread level. When there is
  /// no launcher the process is the only rank.
  MpiEnvironment(int* argc, char*** argv, const Options& options);
  MpiEnvironment(int* argc, char*** argv) : MpiEnvironment(argc, argv, Options{}) {}
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
  ~MpiEnvironment();

  /// Of all processes that the launcher started.
  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;

 private:
  friend class MpiCommunicator;
  std::shared_ptr<struct MpiState> state_;
  Options options_;
};

}  // namespace tributary
