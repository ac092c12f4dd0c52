// Workers that were asked to end while their pool goes on.
#pragma once

#include <vector>

#include "core/base/deadline.h"
#include "core/sequencer/pool_ledger.h"

namespace tributary {

/// Each stays until it holds nothing more, or for `patience`; what it holds then is lost with it.
class Departures {
 public:
  Departures(int workers, Duration patience)
      : states_(static_cast<std::size_t>(workers)), patience_(patience) {}

  /// Records the request of a worker to leave. Returns true if the worker must be emptied now: the
  /// request is its first, and the worker is not gone.
  [[nodiscard]] bool ask(int rank, Time now);
  /// It cannot be emptied: it need not wait.
  void hurry(int rank, Time now) { states_[static_cast<std::size_t>(rank)].until = now; }
  /// Those that may leave now.
  [[nodiscard]] std::vector<int> due(const PoolLedger& ledger, Time now) const;
  /// The pool goes on without the worker, which has left, or was lost.
  void gone(int rank, bool left) {
    states_[static_cast<std::size_t>(rank)] = {.left = left, .gone = true};
  }
  /// Another worker is in its place.
  void back(int rank) { states_[static_cast<std::size_t>(rank)] = {}; }
  /// When due() is to be asked again at the latest.
  [[nodiscard]] Time next_event(Time now) const;
  /// Whether the worker has left: it is not lost.
  [[nodiscard]] bool has_left(int rank) const {
    return states_[static_cast<std::size_t>(rank)].left;
  }

 private:
  struct State {
    bool asked = false;
    bool left = false;
    bool gone = false;
    Time until{};
  };

  std::vector<State> states_;  // [rank]
  Duration patience_;
};

}  // namespace tributary
