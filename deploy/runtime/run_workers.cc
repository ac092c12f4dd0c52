#include "deploy/runtime/run_workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "comm/local/run_ranks.h"
#include "comm/local/self_communicator.h"
#include "core/base/error.h"
#include "core/pool/gather_all.h"
#include "deploy/runtime/cores.h"
#ifdef TRIBUTARY_HAS_MPI
#include "comm/mpi/launcher.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/mpi/mpi_environment.h"
#endif

namespace tributary {
namespace {

/// Opens the terminal of Launcher::terminal().
std::unique_ptr<std::FILE, int (*)(std::FILE*)> open_terminal(bool under_mpi) {
  int fd = -1;
  if (isatty(STDERR_FILENO) == 1) {
    fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  } else if (under_mpi) {
    fd = open(fmt::format("/proc/{}/fd/{}", getppid(), STDERR_FILENO).c_str(),
              O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && isatty(fd) != 1) {
      close(fd);
      fd = -1;
    }
  }
  std::FILE* const file = fd < 0 ? nullptr : fdopen(fd, "w");
  if (fd >= 0 && file == nullptr) close(fd);
  return {file, &std::fclose};
}

}  // namespace

#ifdef TRIBUTARY_HAS_MPI

struct Launcher::Environment {
  Environment(int* argc, char*** argv) : mpi(argc, argv) {}
  MpiEnvironment mpi;
};

Launcher::Launcher(int* argc, char*** argv)
    : under_mpi_(launched_by_mpirun()), terminal_(open_terminal(under_mpi_)) {
  if (under_mpi_) environment_ = std::make_unique<Environment>(argc, argv);
}

#else

struct Launcher::Environment {};

Launcher::Launcher(int* /*argc*/, char*** /*argv*/) : terminal_(open_terminal(false)) {}

#endif

Launcher::~Launcher() = default;

bool Launcher::speaks() const noexcept {
#ifdef TRIBUTARY_HAS_MPI
  if (environment_) return environment_->mpi.rank() == 0;
#endif
  return true;
}

int Launcher::workers(int requested) const {
#ifdef TRIBUTARY_HAS_MPI
  if (environment_) {
    const int ranks = environment_->mpi.size();
    if (requested != 0 && requested != ranks) {
      fail(ErrorCode::kInvalidArgument, "--workers is {}, but the launcher started {} ranks",
           requested, ranks);
    }
    return ranks;
  }
#endif
  return requested == 0 ? 1 : requested;
}

void Launcher::run(int workers, const std::function<void(Communicator&)>& body) const {
  const int count = this->workers(workers);
#ifdef TRIBUTARY_HAS_MPI
  if (environment_) {
    const auto communicator =
        make_mpi_communicator(environment_->mpi, Deadline::after(std::chrono::seconds(60)));
    run_worker_of(*communicator, body);
    return;
  }
#endif
  if (count == 1) {
    body(*make_self_communicator());
  } else {
    run_ranks(count, body);
  }
}

void run_worker_of(Communicator& communicator, const std::function<void(Communicator&)>& body) {
  try {
    body(communicator);
  } catch (const Error& error) {
    communicator.poison({error.code(), error.what()});
    throw;
  } catch (const std::exception& error) {
    communicator.poison({ErrorCode::kWorkerFailed, error.what()});
    throw;
  }
}

int threads_per_worker(Communicator& communicator) {
  return threads_per_worker(communicator, Deadline::after(std::chrono::seconds(60)));
}

int threads_per_worker(Communicator& communicator, Deadline deadline) {
  const Cores mine = own_cores();
  std::vector<Cores> all;
  gather_all(communicator, mine, all, deadline).throw_if_error();
  return share_of_cores(all, static_cast<std::size_t>(communicator.rank()));
}

}  // namespace tributary
