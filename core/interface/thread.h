// A thread that a clock starts, and by which its end is waited for.
#pragma once

#include <functional>
#include <mutex>
#include <thread>

#include "core/interface/clock.h"
#include "core/interface/condition.h"

namespace tributary {

class Thread {
 public:
  /// Runs `body`, which must not throw. The clock outlives the thread.
  Thread(Clock& clock, std::function<void()> body);
  /// Joins.
  ~Thread() { join(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  /// Waits until `body` has returned. Whoever calls it has told the thread to end. Once or twice.
  void join();

 private:
  Clock& clock_;
  std::mutex mutex_;
  Condition ended_;
  bool over_ = false;
  std::thread thread_;  // goes last: it uses the rest
};

}  // namespace tributary
