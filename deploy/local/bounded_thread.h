// A thread that is joined with a deadline. std::thread can only be joined without one.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>

namespace tributary {

/// One thread uses an object at a time.
class BoundedThread {
 public:
  /// Runs `body`, which must not throw and must own everything that it uses: it may outlive this
  /// object.
  explicit BoundedThread(std::function<void()> body);
  /// Detaches a thread that has not been joined.
  ~BoundedThread();
  BoundedThread(const BoundedThread&) = delete;
  BoundedThread& operator=(const BoundedThread&) = delete;

  /// Waits up to `limit` for the thread to end; returns whether it has. A later call may try again.
  [[nodiscard]] bool join_within(std::chrono::milliseconds limit);

 private:
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace tributary
