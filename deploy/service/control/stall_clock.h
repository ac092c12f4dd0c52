// The time since which a loop has run without being held up. While a loop is held up it cannot
// hear, so silence then does not count.
#pragma once

#include <chrono>

#include "core/base/deadline.h"

namespace tributary {

/// For a timer of the loop. A tick that comes late by more than a period means that the loop did
/// nothing meanwhile: messages of that time wait in sockets and are read after the tick.
class StallClock {
 public:
  using Clock = std::chrono::steady_clock;

  StallClock(std::chrono::milliseconds period, Clock::time_point now)
      : period_(period), last_(now), awake_since_(now) {}

  /// Call it at every tick. Returns how long the loop was held up before the tick; 0: not.
  [[nodiscard]] Clock::duration tick(Clock::time_point now) {
    const auto late = now - last_ - period_;
    last_ = now;
    if (late <= period_) return Clock::duration::zero();
    awake_since_ = now;
    return late;
  }

  [[nodiscard]] Clock::time_point awake_since() const noexcept { return awake_since_; }

 private:
  std::chrono::milliseconds period_;
  Clock::time_point last_;
  Clock::time_point awake_since_;
};

}  // namespace tributary
