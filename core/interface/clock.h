// The interface through which the time is read, and threads start and wait: who takes it, or a
// Time, runs in simulated time. Implementations: steady_clock(), ManualClock, SimulatedClock.
#pragma once

#include <functional>
#include <mutex>
#include <thread>

#include "core/base/awake_wait.h"
#include "core/base/deadline.h"
#include "core/base/look_for.h"
#include "core/interface/condition.h"

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
  virtual void wait_until(Condition& changed, std::unique_lock<std::mutex>& lock, Time until) = 0;
  /// As above, without a time: for a thread of ours that has nothing to do until it is told, and is
  /// told to end.
  virtual void wait(Condition& changed, std::unique_lock<std::mutex>& lock) {
    changed.variable().wait(lock);
  }
  /// Starts a thread; see Thread, which also waits for its end by the clock.
  [[nodiscard]] virtual std::thread start(std::function<void()> body) {
    return std::thread(std::move(body));
  }
  /// How long to look for what other threads are about to do, before a wait (look_for).
  [[nodiscard]] virtual Duration look() const { return kLook; }

  /// Waits until `ready()`, at most until `until`; returns ready().
  template <typename Ready>
  bool wait_until(Condition& changed, std::unique_lock<std::mutex>& lock, Time until, Ready ready) {
    while (!ready()) {
      if (now() >= until) return false;
      wait_until(changed, lock, until);
    }
    return true;
  }

  /// As above, at most until `patience` is over.
  template <typename Ready>
  bool wait_until(Condition& changed, std::unique_lock<std::mutex>& lock, AwakeWait patience,
                  Ready ready) {
    while (!ready()) {
      const Time time = now();
      if (patience.over(time)) return false;
      wait_until(changed, lock, patience.next_look(time));
    }
    return true;
  }

  /// Waits until `ready()`.
  template <typename Ready>
  void wait(Condition& changed, std::unique_lock<std::mutex>& lock, Ready ready) {
    while (!ready()) wait(changed, lock);
  }

 protected:
  Clock() = default;
};

/// The processes' clock, std::chrono::steady_clock.
[[nodiscard]] Clock& steady_clock();

}  // namespace tributary
