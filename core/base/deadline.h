// Points in time, and a deadline: one by which a wait ends; no wait is without one.
#pragma once

#include <algorithm>
#include <chrono>

namespace tributary {

using Time = std::chrono::steady_clock::time_point;
using Duration = Time::duration;

/// `now` is passed in by whoever decides. The two functions without it read the processes' clock:
/// they are for edges (sockets, main loops, tools), never for a decision.
///
/// A waiter that was held up has not listened. Where others are judged by a deadline, it has a
/// `hearing`: a wait that begins late, or in which the waiter was held up (AwakeWait), goes on for
/// that long.
class Deadline {
 public:
  explicit Deadline(Time when, Duration hearing = {}) : when_(when), hearing_(hearing) {}
  [[nodiscard]] static Deadline after(Time now, Duration duration) {
    return Deadline(now + duration);
  }
  [[nodiscard]] static Deadline after(Duration duration) {
    return after(std::chrono::steady_clock::now(), duration);
  }

  [[nodiscard]] Time when() const noexcept { return when_; }
  /// The deadline of a wait that begins at `now`, or whose waiter goes on at `now`.
  [[nodiscard]] Deadline heard_from(Time now) const {
    return Deadline(std::max(when_, now + hearing_), hearing_);
  }
  [[nodiscard]] bool expired(Time now) const { return now >= when_; }
  [[nodiscard]] bool expired() const { return expired(std::chrono::steady_clock::now()); }

 private:
  Time when_;
  Duration hearing_;
};

[[nodiscard]] inline double seconds_between(Time begin, Time end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Reads the processes' clock, as meters do.
[[nodiscard]] inline double seconds_since(Time begin) {
  return seconds_between(begin, std::chrono::steady_clock::now());
}

}  // namespace tributary
