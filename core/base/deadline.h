// A point in time by which a wait ends; no wait is without one. A deadline also tells how long the
// wait took.
#pragma once

#include <chrono>

namespace tributary {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(Clock::time_point when) : when_(when) {}
  [[nodiscard]] static Deadline after(Clock::duration duration) {
    return Deadline(Clock::now() + duration);
  }

  [[nodiscard]] Clock::time_point when() const noexcept { return when_; }
  [[nodiscard]] bool expired() const { return Clock::now() >= when_; }

 private:
  Clock::time_point when_;
};

[[nodiscard]] inline double seconds_since(Deadline::Clock::time_point begin) {
  return std::chrono::duration<double>(Deadline::Clock::now() - begin).count();
}

}  // namespace tributary
