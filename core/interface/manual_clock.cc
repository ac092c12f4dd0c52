#include "core/interface/manual_clock.h"

#include <algorithm>
#include <utility>

namespace tributary {

void ManualClock::wait_until(Condition& /*changed*/, std::unique_lock<std::mutex>& lock,
                             Time until) {
  lock.unlock();
  if (!run_next(until)) now_ = std::max(now_, until);
  lock.lock();
}

void ManualClock::at(Time when, std::function<void()> event) {
  events_.emplace(std::max(when, now_), std::move(event));
}

void ManualClock::advance(Duration duration) {
  const Time end = now_ + duration;
  while (run_next(end)) {
  }
  now_ = std::max(now_, end);
}

bool ManualClock::run_next(Time until) {
  if (events_.empty() || events_.begin()->first > until) return false;
  const auto next = events_.extract(events_.begin());
  now_ = std::max(now_, next.key());
  next.mapped()();
  return true;
}

}  // namespace tributary
