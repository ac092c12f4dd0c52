#include "deploy/runtime/launch.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "comm/local/run_ranks.h"
#include "comm/local/self_communicator.h"
#include "core/base/error.h"
#ifdef TRIBUTARY_HAS_MPI
#include "comm/mpi/launcher.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/mpi/mpi_environment.h"
#endif

namespace tributary {

#ifdef TRIBUTARY_HAS_MPI

struct Launcher::Environment {
  Environment(int* argc, char*** argv) : mpi(argc, argv) {}
  MpiEnvironment mpi;
};

Launcher::Launcher(int* argc, char*** argv) : under_mpi_(launched_by_mpirun()) {
  if (under_mpi_) environment_ = std::make_unique<Environment>(argc, argv);
}

#else

struct Launcher::Environment {};

Launcher::Launcher(int* /*argc*/, char*** /*argv*/) {}

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
    MpiCommunicator communicator(environment_->mpi, Deadline::after(std::chrono::seconds(60)));
    try {
      body(communicator);
    } catch (const Error& error) {
      communicator.poison({error.code(), error.what()});
      throw;
    }
    return;
  }
#endif
  if (count == 1) {
    SelfCommunicator communicator;
    body(communicator);
  } else {
    run_ranks(count, body);
  }
}

int threads_per_worker(int workers) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const int usable = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::max(1, usable / std::max(1, workers));
}

}  // namespace tributary
