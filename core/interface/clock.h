// The interface through which the time is read and waited for. Who decides takes a Time or a Clock
// and so runs in simulated time. Implementations: steady_clock(), ManualClock.
#pragma once

#include <condition_variable>
#include <mutex>

#include "core/base/awake_wait.h"
#include "core/base/deadline.h"

namespace tributary {

class Clock {
 public:
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;

  /// Never goes back.
  [[nodiscard]] virtual Time now() const = 0;

  /// As std::condition_variable::wait_until: returns once `changed` was notified, once it is
  /// `until`, or for no reason. `lock` is held before and after.
  virtual void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                          Time until) = 0;

  /// Waits until `ready()`, at most until `until`; returns ready().
  template <typename Ready>
  bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time until,
                  Ready ready) {
    while (!ready()) {
      if (now() >= until) return false;
      wait_until(changed, lock, until);
    }
    return true;
  }

  /// As above, at most until `patience` is over.
  template <typename Ready>
  bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  AwakeWait patience, Ready ready) {
    while (!ready()) {
      const Time time = now();
      if (patience.over(time)) return false;
      wait_until(changed, lock, patience.next_look(time));
    }
    return true;
  }

 protected:
  Clock() = default;
};

/// The processes' clock, std::chrono::steady_clock.
[[nodiscard]] Clock& steady_clock();

}  // namespace tributary
