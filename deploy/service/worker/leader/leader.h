// Rank 0 of a pool that serves: takes the requests of clients and the control plane, forms rounds,
// leads them, and answers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "core/base/deadline.h"
#include "core/interface/clock.h"
#include "core/pool/pool_worker.h"
#include "core/sequencer/move_schedule.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/worker/leader/cost_meter.h"
#include "deploy/service/worker/leader/departures.h"
#include "deploy/service/worker/leader/leader_config.h"
#include "deploy/service/worker/leader/leader_inbox.h"
#include "deploy/service/worker/leader/leader_outbox.h"
#include "deploy/service/worker/leader/pool_meter.h"
#include "deploy/service/worker/leader/request_desk.h"

namespace tributary {

class Leader {
 public:
  /// Sends an order to every worker and takes part in it, see Worker::lead.
  using Lead = std::function<RoundReport(const Order&)>;
  Leader(const LeaderConfig& config, Lead lead, LeaderInbox& inbox, LeaderLinks links,
         Clock& clock);

  /// Runs until the inbox is told to stop, and returns after every worker was told. The pool goes
  /// on without a lost or silent worker. Throws the error that ends it: a round that failed for
  /// good though all workers are there.
  void run();

  // Any thread may call these.

  /// Fills in the leader's part: sequences, draining, the control plane's incarnation.
  void describe(RegisterPool& pool) const;
  [[nodiscard]] Heartbeat heartbeat() const;

 private:
  [[nodiscard]] Time next_event(Time now) const;
  /// How long the next order may wait if nothing requires one.
  [[nodiscard]] Duration order_interval() const;
  void form_round(Time now);
  [[nodiscard]] bool lose_workers();
  void open_slots();
  void give_slots(Order& order);
  void see_off(Time now);
  [[nodiscard]] CanaryOrder choose_canary(Time now);
  void lead(bool stop);
  [[nodiscard]] std::int64_t pages_used() const;
  void measure_costs(const RoundReport& report);

  LeaderConfig config_;
  Lead lead_;
  LeaderInbox& inbox_;
  LeaderLinks links_;
  Clock& clock_;

  /// Guards the fields below between run() and describe() or heartbeat(); free while a round runs.
  mutable std::mutex mutex_;
  PoolMeter meter_;
  CostMeter cost_meter_;
  RequestDesk desk_;
  MoveSchedule move_schedule_;
  Departures departures_;
  std::map<int, WorkerInfo> joined_;  // in the place of lost workers, by rank

  // The fields below belong to run()'s thread alone.
  LeaderOutbox outbox_;
  LeaderMail mail_;
  std::vector<WaitingItem> round_;  // the items of the round that is led
  std::vector<StepItem> items_;
  Time last_order_{};
  Time next_canary_{};
  std::uint64_t canary_counter_ = 0;
  std::vector<std::int32_t> members_;  // ranks that are not lost
  bool regroups_ = false;              // the next order names them
  std::uint64_t generation_ = 0;       // how often one has
  std::vector<int> slots_;             // lost ranks, until the others have regrouped
  /// Of the last order, if a collective failed: the next one comes when a lost worker is known.
  Status broken_;
  std::vector<WaitingItem> broken_round_;  // its items, or of one before it
  std::uint64_t broken_number_ = 0;        // of that order
};

}  // namespace tributary
