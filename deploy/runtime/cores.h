// The cores of a process, and how workers share them.
#pragma once

#include <sched.h>

#include <array>
#include <cstddef>
#include <span>

#include "deploy/runtime/cpu_quota.h"

namespace tributary {

/// The cores that a process may use. Trivially copyable: ranks exchange it.
struct Cores {
  std::array<char, 64> machine{};  // the kernel's boot id: containers share it
  cpu_set_t usable{};
  CpuQuota quota;
};

[[nodiscard]] Cores own_cores();

/// Compute threads for one of these workers: its share of the cores that its process may use, at
/// most its share of the CPU quota rounded up, and at least one. A core that n workers may use
/// counts 1/n for each of them, so a worker that the launcher bound to its own cores gets all of
/// these.
[[nodiscard]] int share_of_cores(std::span<const Cores> workers, std::size_t worker);

/// The same for a process that is not a worker.
[[nodiscard]] int threads_of_process();

}  // namespace tributary
