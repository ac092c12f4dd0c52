// A wait until a deadline, of a thread that may itself be held up.
#pragma once

#include <algorithm>

#include "core/base/deadline.h"
#include "core/base/stall_clock.h"

namespace tributary {

/// Time in which the waiter stood still does not count: after that, it waits for the deadline's
/// hearing at least.
class AwakeWait {
 public:
  AwakeWait(Deadline deadline, Time now)
      : deadline_(deadline.heard_from(now)), stalls_(kPeriod, now) {}

  /// The waiter runs at `now`: whether its wait is over.
  [[nodiscard]] bool over(Time now) {
    if (stalls_.tick(now) > Duration::zero()) deadline_ = deadline_.heard_from(now);
    return deadline_.expired(now);
  }
  /// When over() is to be asked again at the latest.
  [[nodiscard]] Time next_look(Time now) const { return std::min(deadline_.when(), now + kPeriod); }

 private:
  static constexpr std::chrono::milliseconds kPeriod{500};

  Deadline deadline_;
  StallClock stalls_;
};

}  // namespace tributary
