// Calls of clients of which some messages have come: one home is quicker than another, and a round
// with the items of one leaves the workers of the others idle.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/base/deadline.h"
#include "core/plan/step_item.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary {

/// An item on its way into a round.
struct WaitingItem {
  int rank = 0;  // its home
  std::uint64_t ticket = 0;
  std::uint32_t index = 0;  // in the client's request
  Time arrival{};
  Time deadline{};
  StepItem item;
};

class PartialCalls {
 public:
  /// A message of a call has come, with `items` that may run. Moves them to `ready`, with those of
  /// the call's other messages, when none is missing; a first message says until when its items
  /// wait for the rest.
  void add(const wire::CallPart& part, std::vector<WaitingItem> items, Time until,
           std::deque<WaitingItem>& ready);
  /// Moves items that have waited for long enough to `ready`.
  void release(Time now, std::deque<WaitingItem>& ready);
  /// Removes the sequence's item, if one is here.
  [[nodiscard]] std::optional<WaitingItem> remove(SequenceId id);
  /// When release() has something to do; Time::max() if nothing waits.
  [[nodiscard]] Time next_event() const;

 private:
  /// A call stays here for a while after its release: what comes late waits for nothing.
  struct Call {
    std::uint64_t number = 0;
    std::uint32_t missing = 0;  // messages
    Time until{};
    std::vector<WaitingItem> items;  // empty once released
  };

  std::vector<Call> calls_;  // at most kMaxCalls
};

}  // namespace tributary
