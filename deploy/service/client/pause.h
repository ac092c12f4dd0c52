// A pause of a call between two tries. Used only inside deploy/service/client.
#pragma once

#include <mutex>

#include "core/interface/clock.h"
#include "core/interface/condition.h"

namespace tributary {

inline void pause(Clock& clock, Duration duration) {
  std::mutex mutex;
  Condition nothing;
  std::unique_lock lock(mutex);
  clock.wait_until(nothing, lock, clock.now() + duration, [] { return false; });
}

}  // namespace tributary
