// The loop that does all HTTP and WebSocket work of a process, on one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace tributary {

/// Call run() on one thread. post() and stop() may be called from any thread.
class EventLoop {
 public:
  /// Throws kIo if no descriptors are left.
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Runs posted work until stop(). Work that throws ends run() with its exception.
  void run();
  void stop();
  void post(std::function<void()> work);

  /// Keeps a timer or a signal handler active. Destroy it on the loop's thread or after run() has
  /// returned, and before the loop.
  class Timer {
   public:
    virtual ~Timer() = default;
  };
  /// Calls `work` on the loop after `delay`, unless the handle is destroyed first.
  [[nodiscard]] std::unique_ptr<Timer> after(std::chrono::milliseconds delay,
                                             std::function<void()> work);
  /// Calls `work` every `period`, first after one period.
  [[nodiscard]] std::unique_ptr<Timer> every(std::chrono::milliseconds period,
                                             std::function<void()> work);
  /// Calls `work` once when the process gets SIGINT or SIGTERM. Later signals are ignored while the
  /// handle lives.
  [[nodiscard]] std::unique_ptr<Timer> on_termination(std::function<void()> work);

  struct Impl;  // used by comm/http only
  [[nodiscard]] Impl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
