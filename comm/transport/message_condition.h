// A condition variable for what a transport's messages bring.
#pragma once

#include <mutex>

#include "comm/transport/transport.h"
#include "core/base/awake_wait.h"
#include "core/base/deadline.h"
#include "core/interface/clock.h"
#include "core/interface/condition.h"

namespace tributary {

/// Who waits for it does the transport's work where that lets him. Any thread may notify.
class MessageCondition {
 public:
  MessageCondition() = default;
  MessageCondition(const MessageCondition&) = delete;
  MessageCondition& operator=(const MessageCondition&) = delete;

  /// Of this transport from now on; null: it ends, and nobody uses it any more when this returns.
  /// Nobody waits meanwhile.
  void use(Transport* transport) {
    const std::lock_guard lock(mutex_);
    transport_ = transport;
  }

  void notify_all() {
    changed_.notify_all();
    const std::lock_guard lock(mutex_);
    if (transport_ != nullptr) transport_->wake();
  }
  /// Waits until `ready()`, which is asked with `lock` held, at most until `until`; returns
  /// ready().
  template <typename Ready>
  bool wait_until(Clock& clock, std::unique_lock<std::mutex>& lock, Time until, Ready ready) {
    Transport* const transport = this->transport();
    if (transport != nullptr && !ready() && clock.now() < until) {
      lock.unlock();
      const bool worked = transport->work_until(until, [&] {
        const std::lock_guard again(*lock.mutex());
        return ready();
      });
      lock.lock();
      if (worked) return ready();
    }
    return clock.wait_until(changed_, lock, until, ready);
  }
  /// As above, at most until `patience` is over.
  template <typename Ready>
  bool wait_until(Clock& clock, std::unique_lock<std::mutex>& lock, AwakeWait patience,
                  Ready ready) {
    while (!ready()) {
      const Time now = clock.now();
      if (patience.over(now)) return false;
      static_cast<void>(wait_until(clock, lock, patience.next_look(now), ready));
    }
    return true;
  }

 private:
  [[nodiscard]] Transport* transport() {
    const std::lock_guard lock(mutex_);
    return transport_;
  }

  Condition changed_;
  std::mutex mutex_;
  Transport* transport_ = nullptr;  // mutex_
};

}  // namespace tributary
