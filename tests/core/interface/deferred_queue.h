// Stands in for a device's stream in tests without a device: work is done when somebody waits for
// it.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary::test {

/// Used by one thread, a rank's.
class DeferredQueue {
 public:
  using Work = std::function<void(Deadline)>;

  void add(Work work) { queue_.push_back(std::move(work)); }
  [[nodiscard]] bool empty() const noexcept { return queue_.empty(); }

  /// Does all work in order, or until `over` returns true. Counts as a wait if there is any work.
  /// Work that throws does not stop the rest.
  void drain(
      Deadline deadline, const std::function<bool()>& over = [] { return false; }) {
    if (!queue_.empty()) ++waits_;
    while (!queue_.empty() && !over()) {
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      ++done_;
      const Status status = status_of([&] { work(deadline); });
      if (failure_.ok()) failure_ = status;
    }
  }
  /// The first failure since the last call.
  [[nodiscard]] Status take_failure() { return std::exchange(failure_, {}); }
  [[nodiscard]] int waits() const noexcept { return waits_; }
  /// Pieces of work so far, the current one included: the clock of this device.
  [[nodiscard]] int done() const noexcept { return done_; }

  /// Memory was freed or read while queued work may use it.
  void note_hazard() noexcept {
    if (!queue_.empty()) ++hazards_;
  }
  [[nodiscard]] int hazards() const noexcept { return hazards_; }

 private:
  std::deque<Work> queue_;
  Status failure_;
  int waits_ = 0;
  int done_ = 0;
  int hazards_ = 0;
};

}  // namespace tributary::test
