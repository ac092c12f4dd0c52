// Measures how long something takes on a machine that others use too.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/interface/backend.h"
#include "core/interface/communicator.h"
#include "deploy/app/bench/collective_series.h"

namespace tributary::bench {

/// NaN of nothing.
[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The 5th percentile: other load on a machine only ever adds time, and even on a busy machine some
/// of the runs are undisturbed.
[[nodiscard]] inline double undisturbed(std::vector<double> times) {
  const auto at = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 20);
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

/// Microseconds of one piece of work.
struct Timing {
  /// The time from the host's first call for it until its end, by the device's clock if it has one;
  /// otherwise host_us.
  double us = 0;
  double host_us = 0;  // until the host has seen its end
};

/// Measures how long `backend` takes for the work that `enqueue()` gives it, repeated for about
/// `seconds`, with all ranks starting each run together. Returns the slowest rank's undisturbed().
/// The number of runs is the same on every rank. Each run is waited for; a device's own clock
/// leaves out that wait, which a pool makes only once for all parts of a round. Throws the
/// backend's errors.
template <typename Enqueue>
Timing measure(Backend& backend, Communicator& communicator, double seconds, Enqueue&& enqueue) {
  const auto once = [&]() -> Timing {
    (void)maximum(communicator, 0);
    const auto begin = std::chrono::steady_clock::now();
    backend.mark(0);
    enqueue();
    backend.mark(1);
    backend.synchronize(Deadline::after(std::chrono::seconds(60)));
    const std::chrono::duration<double, std::micro> host = std::chrono::steady_clock::now() - begin;
    return {.us = backend.microseconds_between(0, 1).value_or(host.count()),
            .host_us = host.count()};
  };
  (void)once();  // fills caches and touches memory for the first time
  // Fewer runs have no meaningful percentile; more add nothing.
  const double warm = std::max(maximum(communicator, once().host_us), 0.1);
  const auto runs = static_cast<std::size_t>(std::clamp(seconds * 1e6 / warm, 20.0, 5000.0));
  std::vector<double> times(runs);
  std::vector<double> host_times(runs);
  for (std::size_t run = 0; run < runs; ++run) {
    const Timing timing = once();
    times[run] = timing.us;
    host_times[run] = timing.host_us;
  }
  return {.us = maximum(communicator, undisturbed(std::move(times))),
          .host_us = maximum(communicator, undisturbed(std::move(host_times)))};
}

}  // namespace tributary::bench
