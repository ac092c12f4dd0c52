// Ranks as threads of one process: a group owns what they share and hands each its communicator.
#pragma once

#include <memory>

#include "core/interface/communicator.h"

namespace tributary {

/// The shared state of `ranks` communicators. It lives as long as the group or any communicator.
///
/// A collective completes on all ranks or on none. Any failure (a missed deadline, wrong or
/// mismatched arguments, poison) wakes every rank that waits, and all calls that are not complete
/// fail with the same cause. Ranks wait on a condition variable; none spins. Bytes go from a peer's
/// `send` straight into the caller's `recv`; no rank returns while a peer still reads its `send`,
/// so a call may outlast its deadline by the copy of one small piece.
///
/// A rank that destroys its communicator, or never takes it, just never comes: its peers end at
/// their deadlines.
class ThreadGroup {
 public:
  static constexpr int kMaxRanks = 1024;

  /// Throws kInvalidArgument unless 1 <= ranks <= kMaxRanks.
  explicit ThreadGroup(int ranks);

  /// The communicator of `rank`, to be used by one thread. Each rank has one: throws
  /// kInvalidArgument for a rank out of range, kFailedPrecondition when it was taken before.
  [[nodiscard]] std::unique_ptr<Communicator> take(int rank);

  /// Fails all ranks with `reason` (ignored when the group has failed before). From any thread.
  void poison(const Status& reason);

 private:
  std::shared_ptr<class ThreadGroupState> state_;
};

}  // namespace tributary
