// A short look for what will probably happen soon, before a thread parks.
#pragma once

#include <chrono>
#include <thread>

namespace tributary {

/// The cost of waking a parked thread, measured on virtual machines (20 to 100 us). A thread that
/// parks earlier saves nothing; one that looks this long wastes at most as much again.
inline constexpr std::chrono::microseconds kLook{50};

/// Returns when done() is true or `most` is over. Yields the processor in between.
template <typename Done>
void look_for(const Done& done, std::chrono::nanoseconds most = kLook) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace tributary
