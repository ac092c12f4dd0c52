// How orders come from rank 0 to the other ranks of a pool. Implementations: core/pool (a broadcast
// on the pool's communicator), and where there is a service its data plane.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

/// Orders come out on every rank in the order of sending, each once. Used by one thread of a rank.
/// After a failure the channel has ended: nobody sends or waits again.
class OrderChannel {
 public:
  OrderChannel() = default;
  OrderChannel(const OrderChannel&) = delete;
  OrderChannel& operator=(const OrderChannel&) = delete;
  virtual ~OrderChannel() = default;

  /// Rank 0, to all others: `order` (one byte at least) may be reused when it returns. An
  /// implementation may return before the others have it, and they may be lost.
  virtual Status send(std::span<const std::byte> order, Deadline deadline) = 0;

  /// Other ranks: replaces `order` by the next one, or by none where the others go on without this
  /// rank, as it has asked. kDeadlineExceeded when none has come by then;
  /// kPoolLost when rank 0 is gone; or what `look` says, which is asked now and then, and after
  /// each wake() where no order has come: a rank that waits looks for failures of the others too.
  virtual Status wait(std::vector<std::byte>& order, Deadline deadline,
                      const std::function<Status()>& look) = 0;

  /// Wakes this rank's thread, which waits here or, as rank 0, for what it will order next. From
  /// any thread.
  virtual void wake() = 0;
};

}  // namespace tributary
