// The time since which a thread has run without being held up. While it is held up it cannot hear,
// so silence then does not count.
#pragma once

#include "core/base/deadline.h"

namespace tributary {

/// For a thread that wakes once a period. A tick that comes late by more than a period means that
/// the thread did nothing meanwhile: messages of that time wait in sockets and are read after the
/// tick.
class StallClock {
 public:
  StallClock(Duration period, Time now) : period_(period), last_(now), awake_since_(now) {}

  /// Call it at every tick. Returns how long the thread was held up before the tick; 0: not.
  [[nodiscard]] Duration tick(Time now) {
    const Duration late = now - last_ - period_;
    last_ = now;
    if (late <= period_) return Duration::zero();
    awake_since_ = now;
    return late;
  }

  [[nodiscard]] Time awake_since() const noexcept { return awake_since_; }

 private:
  Duration period_;
  Time last_;
  Time awake_since_;
};

}  // namespace tributary
