#include "deploy/runtime/cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <ios>

namespace tributary {

Cores own_cores() {
  Cores cores;
  std::ifstream("/proc/sys/kernel/random/boot_id")
      .getline(cores.machine.data(), static_cast<std::streamsize>(cores.machine.size()));
  if (sched_getaffinity(0, sizeof(cores.usable), &cores.usable) != 0) CPU_ZERO(&cores.usable);
  cores.quota = cpu_quota();
  return cores;
}

int share_of_cores(std::span<const Cores> workers, std::size_t worker) {
  const Cores& mine = workers[worker];
  const auto sharers = [&](const auto& shares) {
    return static_cast<double>(std::ranges::count_if(workers, [&](const Cores& other) {
      return other.machine == mine.machine && shares(other);
    }));
  };
  double share = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine.usable)) continue;
    share += 1.0 / sharers([&](const Cores& other) { return CPU_ISSET(core, &other.usable) != 0; });
  }
  // A sum of thirds may miss the whole number by a rounding error.
  constexpr double kRounding = 1e-6;
  double threads = std::floor(share + kRounding);
  if (mine.quota.cpus > 0) {
    // More threads than that spend the group's time early, and all wait for the next period.
    const double quota = mine.quota.cpus / sharers([&](const Cores& other) {
                           return other.quota.group == mine.quota.group;
                         });
    threads = std::min(threads, std::ceil(quota - kRounding));
  }
  return std::max(1, static_cast<int>(threads));
}

int threads_of_process() {
  const Cores mine = own_cores();
  return share_of_cores(std::span(&mine, 1), 0);
}

}  // namespace tributary
