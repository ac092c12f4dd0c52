// What a home asks its leader for again: items of rounds that broke with a lost worker.
#pragma once

#include <utility>
#include <vector>

#include "core/interface/clock.h"
#include "core/pool/pool_worker.h"
#include "deploy/service/worker/home/home_queue.h"
#include "deploy/service/worker/home/leader_port.h"

namespace tributary {

/// A round may have broken on some ranks alone, so the leader cannot know whose items have run. A
/// home does: those that still wait in its queue have not. Used by the worker's thread.
class BrokenRounds {
 public:
  /// All outlive it.
  BrokenRounds(HomeQueue& queue, LeaderPort& leader, Clock& clock)
      : queue_(queue), leader_(leader), clock_(clock) {}

  /// An order has ended here. Items are asked for again when the pool has regrouped.
  void order_ended(const RoundReport& report) {
    interrupted_.insert(interrupted_.end(), report.interrupted.begin(), report.interrupted.end());
    if (!report.regrouped) return;
    for (wire::Items& items : queue_.waiting(interrupted_, clock_.now())) {
      leader_.post(std::move(items));
    }
    interrupted_.clear();
  }

 private:
  HomeQueue& queue_;
  LeaderPort& leader_;
  Clock& clock_;
  std::vector<StepItem> interrupted_;
};

}  // namespace tributary
