// A thread whose end is waited for with a deadline. std::thread knows only a wait without one.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>

namespace tributary {

/// One thread uses an object at a time.
class BoundedThread {
 public:
  /// Runs `body`, which must not throw, and which owns all that it uses: it may go on after this
  /// object.
  explicit BoundedThread(std::function<void()> body);
  /// Leaves a thread that has not been joined to itself.
  ~BoundedThread();
  BoundedThread(const BoundedThread&) = delete;
  BoundedThread& operator=(const BoundedThread&) = delete;

  /// Whether the thread has ended, which this waits for, up to `limit`. A later call may try again.
  [[nodiscard]] bool join_within(std::chrono::milliseconds limit);

 private:
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace tributary
