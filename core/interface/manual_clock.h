// A clock that a test moves: waiting for a time moves it there, through the events that are planned
// until then. One thread; what others would do meanwhile is an event.
#pragma once

#include <functional>
#include <map>

#include "core/interface/clock.h"

namespace tributary {

class ManualClock final : public Clock {
 public:
  explicit ManualClock(Time begin = {}) : now_(begin) {}

  [[nodiscard]] Time now() const override { return now_; }
  /// Moves to the next planned event and runs it with `lock` released, or to `until` if none is
  /// planned before; so a wait for what an event brings ends at that event.
  void wait_until(Condition& changed, std::unique_lock<std::mutex>& lock, Time until) override;
  using Clock::wait_until;

  /// Plans `event` for `when`, or for now where that has passed. Events of one time run in the
  /// order in which they were planned; an event may plan others.
  void at(Time when, std::function<void()> event);
  void after(Duration delay, std::function<void()> event) { at(now_ + delay, std::move(event)); }

  /// Runs every event until now + duration, and ends there.
  void advance(Duration duration);

 private:
  /// Runs the next event if it is planned for `until` at the latest.
  bool run_next(Time until);

  Time now_;
  std::multimap<Time, std::function<void()>> events_;
};

}  // namespace tributary
