// The one thread on which a process' HTTP and WebSocket work happens.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace tributary {

/// run() on one thread; post() and stop() from any.
class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Runs what is posted until stop(). Work that throws ends run() with its exception.
  void run();
  void stop();
  void post(std::function<void()> work);

  /// All handles go before the loop does.
  ///
  /// Calls `work` on the loop after `delay`, until the handle is destroyed (on the loop's thread,
  /// or after run() has returned).
  class Timer {
   public:
    virtual ~Timer() = default;
  };
  [[nodiscard]] std::unique_ptr<Timer> after(std::chrono::milliseconds delay,
                                             std::function<void()> work);
  /// Every `period`, first after one.
  [[nodiscard]] std::unique_ptr<Timer> every(std::chrono::milliseconds period,
                                             std::function<void()> work);
  /// Calls `work` once when the process gets SIGINT or SIGTERM; further ones are absorbed while the
  /// handle lives.
  [[nodiscard]] std::unique_ptr<Timer> on_termination(std::function<void()> work);

  struct Impl;  // of comm/http alone
  [[nodiscard]] Impl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
