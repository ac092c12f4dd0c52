// Initialises MPI, and finalises it if all ranks take part.
#include "comm/mpi/mpi_environment.h"

#include <signal.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "comm/mpi/mpi_support.h"

namespace tributary {
namespace {

/// Open MPI's TCP transport writes to sockets without MSG_NOSIGNAL: by default a rank that sends to
/// one that was killed is killed by SIGPIPE (seen: 2 of 3 survivors). Whoever handles it goes on
/// to.
void outlive_closed_sockets() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    current.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &current, nullptr);
  }
}

/// Ok if all ranks arrived before the deadline.
Status meet(Deadline deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (Status status = mpi_status("MPI_Ibarrier", MPI_Ibarrier(MPI_COMM_WORLD, &request));
      !status.ok()) {
    return status;
  }
  return wait_for_request("waiting for all ranks to finalize MPI", &request, deadline);
}

}  // namespace

MpiEnvironment::MpiEnvironment(int* argc, char*** argv, const Options& options)
    : state_(std::make_shared<MpiState>()), options_(options) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) fail(ErrorCode::kFailedPrecondition, "MPI was initialised before");
  outlive_closed_sockets();
  int provided = 0;
  mpi_status("MPI_Init_thread", MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided))
      .throw_if_error();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &state_->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &state_->size);
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    fail(ErrorCode::kUnsupported,
         "the MPI library provides thread level {}, MPI_THREAD_FUNNELED ({}) is needed", provided,
         static_cast<int>(MPI_THREAD_FUNNELED));
  }
}

MpiEnvironment::~MpiEnvironment() {
  const Status status = meet(Deadline::after(
      state_->failed ? options_.finalize_timeout_after_failure : options_.finalize_timeout));
  state_->finalized = true;
  if (status.ok()) {
    MPI_Finalize();
    state_->abandoned.clear();
    return;
  }
  // Never freed: MPI may write to abandoned memory until the process ends.
  static std::shared_ptr<MpiState> kept;
  kept = state_;
  std::fputs(fmt::format("rank {}: MPI is not finalized, because some rank is dead or stuck: {}\n",
                         state_->rank, status.message())
                 .c_str(),
             stderr);
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  // After the version Open MPI says who packaged it, and MPICH how it was configured.
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

int MpiEnvironment::rank() const noexcept {
  return state_->rank;
}

int MpiEnvironment::size() const noexcept {
  return state_->size;
}

}  // namespace tributary
