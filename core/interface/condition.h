// A condition variable for waits by a Clock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>

namespace tributary {

/// Wait for it by Clock::wait() or Clock::wait_until(). Any thread may notify.
class Condition {
 public:
  /// Wakes everybody who waits.
  void notify_all() noexcept {
    if (counts_.load(std::memory_order_relaxed)) {
      notifications_.fetch_add(1, std::memory_order_relaxed);
    }
    variable_.notify_all();
  }

  // For clocks.

  /// How often it was notified since somebody first asked: by this a clock whose threads take turns
  /// knows who may go on. Nobody else asks, so that to notify writes nothing.
  [[nodiscard]] std::uint64_t notifications() noexcept {
    counts_.store(true, std::memory_order_relaxed);
    return notifications_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::condition_variable& variable() noexcept { return variable_; }

 private:
  std::condition_variable variable_;
  std::atomic<bool> counts_ = false;
  std::atomic<std::uint64_t> notifications_ = 0;
};

}  // namespace tributary
