#include "comm/http/event_loop.h"

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <utility>

#include "comm/http/event_loop_impl.h"

namespace tributary {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

/// Shared by the handle and the pending wait, so that `work` may destroy its own handle.
struct TimerState : std::enable_shared_from_this<TimerState> {
  TimerState(asio::io_context& io, std::chrono::milliseconds again, std::function<void()> todo)
      : timer(io), period(again), work(std::move(todo)) {}

  void wait() {
    timer.async_wait([self = shared_from_this()](const error_code& error) {
      if (error || self->cancelled) return;
      if (self->period.count() > 0) self->again();
      self->work();
    });
  }

  /// A loop that was delayed makes one call, not one for each period that it missed.
  void again() {
    const auto now = std::chrono::steady_clock::now();
    auto next = timer.expiry() + period;
    if (next < now) next = now + period;
    timer.expires_at(next);
    wait();
  }

  asio::steady_timer timer;
  std::chrono::milliseconds period;  // 0: once
  std::function<void()> work;
  bool cancelled = false;
};

class TimerHandle final : public EventLoop::Timer {
 public:
  explicit TimerHandle(std::shared_ptr<TimerState> state) : state_(std::move(state)) {}
  ~TimerHandle() override {
    state_->cancelled = true;
    state_->timer.cancel();
  }
  TimerHandle(const TimerHandle&) = delete;
  TimerHandle& operator=(const TimerHandle&) = delete;

 private:
  std::shared_ptr<TimerState> state_;
};

std::unique_ptr<EventLoop::Timer> start_timer(asio::io_context& io, std::chrono::milliseconds delay,
                                              std::chrono::milliseconds period,
                                              std::function<void()> work) {
  auto state = std::make_shared<TimerState>(io, period, std::move(work));
  state->timer.expires_after(delay);
  auto handle = std::make_unique<TimerHandle>(state);
  state->wait();
  return handle;
}

struct SignalState : std::enable_shared_from_this<SignalState> {
  SignalState(asio::io_context& io, std::function<void()> todo)
      : signals(io, SIGINT, SIGTERM), work(std::move(todo)) {}

  void wait() {
    signals.async_wait([self = shared_from_this()](const error_code& error, int /*signal*/) {
      if (error || self->cancelled) return;
      self->wait();  // ignores later signals, so that the stop that has begun ends cleanly
      if (!std::exchange(self->called, true)) self->work();
    });
  }

  asio::signal_set signals;
  std::function<void()> work;
  bool cancelled = false;
  bool called = false;
};

class SignalHandle final : public EventLoop::Timer {
 public:
  explicit SignalHandle(std::shared_ptr<SignalState> state) : state_(std::move(state)) {}
  ~SignalHandle() override {
    state_->cancelled = true;
    error_code ignored;
    state_->signals.clear(ignored);
    state_->signals.cancel(ignored);
  }
  SignalHandle(const SignalHandle&) = delete;
  SignalHandle& operator=(const SignalHandle&) = delete;

 private:
  std::shared_ptr<SignalState> state_;
};

}  // namespace

void LoopGate::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (io_ != nullptr) asio::post(*io_, std::move(work));
}

void LoopGate::close() {
  const std::lock_guard lock(mutex_);
  io_ = nullptr;
}

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::run() {
  impl_->io.run();
  impl_->io.restart();  // after the run: a stop() before run() counts
}

void EventLoop::stop() {
  impl_->io.stop();
}

void EventLoop::post(std::function<void()> work) {
  asio::post(impl_->io, std::move(work));
}

std::unique_ptr<EventLoop::Timer> EventLoop::after(std::chrono::milliseconds delay,
                                                   std::function<void()> work) {
  return start_timer(impl_->io, delay, std::chrono::milliseconds{0}, std::move(work));
}

std::unique_ptr<EventLoop::Timer> EventLoop::every(std::chrono::milliseconds period,
                                                   std::function<void()> work) {
  return start_timer(impl_->io, period, period, std::move(work));
}

std::unique_ptr<EventLoop::Timer> EventLoop::on_termination(std::function<void()> work) {
  auto state = std::make_shared<SignalState>(impl_->io, std::move(work));
  auto handle = std::make_unique<SignalHandle>(state);
  state->wait();
  return handle;
}

}  // namespace tributary
