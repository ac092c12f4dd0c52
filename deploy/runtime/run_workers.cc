#include "deploy/runtime/run_workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <ios>
#include <memory>
#include <span>
#include <vector>

#include "comm/local/run_ranks.h"
#include "comm/local/self_communicator.h"
#include "core/base/error.h"
#include "core/pool/gather_all.h"
#ifdef TRIBUTARY_HAS_MPI
#include "comm/mpi/launcher.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/mpi/mpi_environment.h"
#endif

namespace tributary {
namespace {

/// The cores that a process may use. Trivially copyable: ranks exchange it.
struct Cores {
  std::array<char, 64> machine{};  // the kernel's boot id: containers share it
  cpu_set_t usable{};
};

Cores own_cores() {
  Cores cores;
  std::ifstream("/proc/sys/kernel/random/boot_id")
      .getline(cores.machine.data(), static_cast<std::streamsize>(cores.machine.size()));
  if (sched_getaffinity(0, sizeof(cores.usable), &cores.usable) != 0) CPU_ZERO(&cores.usable);
  return cores;
}

/// A core that several workers may use counts for each as its share.
int share_of_cores(std::span<const Cores> workers, std::size_t worker) {
  const Cores& mine = workers[worker];
  double share = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine.usable)) continue;
    share += 1.0 / static_cast<double>(std::ranges::count_if(workers, [&](const Cores& other) {
               return other.machine == mine.machine && CPU_ISSET(core, &other.usable);
             }));
  }
  // A sum of thirds may miss the whole number by a rounding error.
  return std::max(1, static_cast<int>(share + 1e-6));
}

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
    try {
      body(*communicator);
    } catch (const Error& error) {
      communicator->poison({error.code(), error.what()});
      throw;
    } catch (const std::exception& error) {
      communicator->poison({ErrorCode::kWorkerFailed, error.what()});
      throw;
    }
    return;
  }
#endif
  if (count == 1) {
    body(*make_self_communicator());
  } else {
    run_ranks(count, body);
  }
}

int threads_per_worker(Communicator& communicator) {
  const Cores mine = own_cores();
  std::vector<Cores> all;
  gather_all(communicator, mine, all, Deadline::after(std::chrono::seconds(60))).throw_if_error();
  return share_of_cores(all, static_cast<std::size_t>(communicator.rank()));
}

}  // namespace tributary
