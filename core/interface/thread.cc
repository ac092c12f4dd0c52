#include "core/interface/thread.h"

#include <utility>

namespace tributary {

Thread::Thread(Clock& clock, std::function<void()> body)
    : clock_(clock), thread_(clock.start([this, body = std::move(body)] {
        body();
        const std::lock_guard lock(mutex_);
        over_ = true;
        ended_.notify_all();
      })) {}

void Thread::join() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    clock_.wait(ended_, lock, [this] { return over_; });
  }
  thread_.join();
}

}  // namespace tributary
