// A bound on the bytes that many threads have in flight together.
#pragma once

#include <cstddef>
#include <mutex>

#include "comm/transport/message_condition.h"
#include "core/base/deadline.h"
#include "core/interface/clock.h"

namespace tributary {

class ByteBudget {
 public:
  ByteBudget(std::size_t max_bytes, Clock& clock) : max_bytes_(max_bytes), clock_(clock) {}

  /// Whose messages give bytes back; null: it ends.
  void work_with(Transport* transport) { room_.use(transport); }
  /// Waits for room; a request larger than the whole bound goes alone. Returns false at the
  /// deadline.
  [[nodiscard]] bool take(std::size_t bytes, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const bool room = room_.wait_until(clock_, lock, deadline.when(), [&] {
      return taken_ == 0 || (bytes <= max_bytes_ && taken_ <= max_bytes_ - bytes);
    });
    if (room) taken_ += bytes;
    return room;
  }
  void give_back(std::size_t bytes) {
    {
      const std::scoped_lock lock(mutex_);
      taken_ -= bytes;
    }
    room_.notify_all();
  }

 private:
  const std::size_t max_bytes_;
  Clock& clock_;
  std::mutex mutex_;
  MessageCondition room_;
  std::size_t taken_ = 0;
};

}  // namespace tributary
