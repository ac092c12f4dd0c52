// What a stream of a device is to tests without one: work that is done when somebody waits for it.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary::test {

/// Used by one thread: that of a rank.
class DeferredQueue {
 public:
  using Work = std::function<void(Deadline)>;

  void add(Work work) { queue_.push_back(std::move(work)); }
  [[nodiscard]] bool empty() const noexcept { return queue_.empty(); }

  /// Does all of it, in order, or up to where `over` says so, and counts as a wait if there is any.
  /// What throws does not keep the rest from being done.
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
  /// The first that was thrown since the last call.
  [[nodiscard]] Status take_failure() { return std::exchange(failure_, {}); }
  [[nodiscard]] int waits() const noexcept { return waits_; }
  /// Pieces of work so far, that which is being done included: the time of this device.
  [[nodiscard]] int done() const noexcept { return done_; }

  /// Memory went, or was looked at, while work on it may have been under way.
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
