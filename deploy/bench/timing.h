// How long something takes on a machine that others use too.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "core/base/deadline.h"
#include "core/interface/communicator.h"
#include "deploy/bench/collective_series.h"

namespace tributary::bench {

/// The 5th percentile: what others do to a machine only ever adds time, and that of the shortest
/// runs, of which some go undisturbed on a busy machine too.
[[nodiscard]] inline double undisturbed(std::vector<double> times) {
  const auto at = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 20);
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

/// Microseconds of `work()` for about so many seconds, all ranks beginning together each time: the
/// slowest rank's undisturbed(). The number of runs is the same on every rank.
template <typename Work>
double measure_us(Communicator& communicator, double seconds, Work&& work) {
  const auto once = [&] {
    (void)maximum(communicator, 0);
    const auto begin = Deadline::Clock::now();
    work();
    return std::chrono::duration<double, std::micro>(Deadline::Clock::now() - begin).count();
  };
  (void)once();  // caches, memory that is touched for the first time
  // Fewer say nothing; more than these only heat the room.
  const double warm = std::max(maximum(communicator, once()), 0.1);
  const auto runs = static_cast<std::size_t>(std::clamp(seconds * 1e6 / warm, 20.0, 5000.0));
  std::vector<double> times(runs);
  for (double& time : times) time = once();
  return maximum(communicator, undisturbed(std::move(times)));
}

}  // namespace tributary::bench
