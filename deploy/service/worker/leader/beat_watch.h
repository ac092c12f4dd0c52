// Judges the silence of a pool's other workers.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "core/base/stall_clock.h"
#include "deploy/service/worker/leader/leader_inbox.h"

namespace tributary {

/// Ticks on a thread of its own, also while the leader runs a round. Silence in time in which that
/// thread was held up does not count: the beats of that time are still to be read.
class BeatWatch {
 public:
  /// A worker that is silent for longer than `limit` is lost, and the inbox says so. If the leader
  /// has not taken a loss `limit` after it was seen here, because it is stuck in a round, `stuck`
  /// is called; it may be empty.
  BeatWatch(LeaderInbox& inbox, Duration limit, Duration period, Time now,
            std::function<void(const Status&)> stuck)
      : inbox_(inbox), limit_(limit), stalls_(period, now), stuck_(std::move(stuck)) {}

  /// Call it once a period.
  void tick(Time now);

 private:
  void judge(Time now);

  LeaderInbox& inbox_;
  Duration limit_;
  StallClock stalls_;
  std::function<void(const Status&)> stuck_;
  std::optional<Time> lost_since_;  // seen and not taken
};

}  // namespace tributary
