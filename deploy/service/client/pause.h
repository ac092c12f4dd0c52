// A pause of a call between two tries. Used only inside deploy/service/client.
#pragma once

#include <condition_variable>
#include <mutex>

#include "core/interface/clock.h"

namespace tributary {

inline void pause(Clock& clock, Duration duration) {
  std::mutex mutex;
  std::condition_variable nothing;
  std::unique_lock lock(mutex);
  clock.wait_until(nothing, lock, clock.now() + duration, [] { return false; });
}

}  // namespace tributary
