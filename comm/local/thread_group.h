// Ranks as threads of one process: a group owns the shared state and gives each its communicator.
#pragma once

#include <memory>
#include <vector>

#include "core/interface/communicator.h"

namespace tributary {

/// The shared state of `ranks` communicators. It lives as long as the group or any communicator.
///
/// A collective completes on all ranks or on none. Any failure (a missed deadline, wrong or
/// mismatched arguments, poison) wakes every waiting rank, and all incomplete calls fail with the
/// same cause. A rank looks for its peers for some 50 us (core/base/look_for.h) and then waits on a
/// condition variable. Bytes are copied once, from a peer's
/// `send` into the caller's `recv`. No rank returns while a peer still reads its `send`, so a call
/// may exceed its deadline by the copy of one small piece.
///
/// If a rank destroys its communicator, or never takes it, its peers fail at their deadlines.
/// survivors() share a state of their own, which lives as long as this one or any of them.
class ThreadGroup {
 public:
  static constexpr int kMaxRanks = 1024;

  /// Throws kInvalidArgument unless 1 <= ranks <= kMaxRanks. Deadlines are of the processes' clock.
  explicit ThreadGroup(int ranks);
  /// Deadlines are of `clock`, which outlives the communicators.
  ThreadGroup(int ranks, Clock& clock);

  /// The communicator of `rank`, for use by one thread. Throws kInvalidArgument for a rank out of
  /// range, kFailedPrecondition when it was taken before.
  [[nodiscard]] std::unique_ptr<Communicator> take(int rank);

  /// Fails all ranks with `reason`, also in survivors(). Ignored where a communicator has failed
  /// before. Any thread may call.
  void poison(const Status& reason);

 private:
  std::vector<int> members_;  // all ranks
  std::shared_ptr<class ThreadGroupState> state_;
};

}  // namespace tributary
