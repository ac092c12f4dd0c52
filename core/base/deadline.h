// Points in time, and a deadline: one by which a wait ends; no wait is without one.
#pragma once

#include <chrono>

namespace tributary {

using Time = std::chrono::steady_clock::time_point;
using Duration = Time::duration;

/// `now` is passed in by whoever decides. The two functions without it read the processes' clock:
/// they are for edges (sockets, main loops, tools), never for a decision.
class Deadline {
 public:
  explicit Deadline(Time when) : when_(when) {}
  [[nodiscard]] static Deadline after(Time now, Duration duration) {
    return Deadline(now + duration);
  }
  [[nodiscard]] static Deadline after(Duration duration) {
    return after(std::chrono::steady_clock::now(), duration);
  }

  [[nodiscard]] Time when() const noexcept { return when_; }
  [[nodiscard]] bool expired(Time now) const { return now >= when_; }
  [[nodiscard]] bool expired() const { return expired(std::chrono::steady_clock::now()); }

 private:
  Time when_;
};

[[nodiscard]] inline double seconds_between(Time begin, Time end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Reads the processes' clock, as meters do.
[[nodiscard]] inline double seconds_since(Time begin) {
  return seconds_between(begin, std::chrono::steady_clock::now());
}

}  // namespace tributary
