// Handles each request to the leader, from a client or from the control plane. Sequences begin,
// step and end here, and items wait here until a round takes them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/sequencer/sequencer.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/worker/leader/leader_config.h"
#include "deploy/service/worker/leader/leader_inbox.h"
#include "deploy/service/worker/leader/leader_outbox.h"
#include "deploy/service/worker/leader/lease_book.h"
#include "deploy/service/worker/leader/partial_calls.h"
#include "deploy/service/worker/leader/pool_meter.h"
#include "deploy/service/worker/leader/step_book.h"

namespace tributary {

/// Not synchronised; the leader does that.
class RequestDesk {
 public:
  /// Answers go to `outbox`. Both outlive the desk.
  RequestDesk(const LeaderConfig& config, LeaderOutbox& outbox, PoolMeter& meter);

  void receive(const LeaderMail& mail, Time now);
  void end_leases(Time now);
  /// A worker is gone, between two orders: those that had rows or their home there are told so when
  /// they ask next, and all others go on.
  void lose_worker(int rank, Time now);

  /// Whether enough items wait for a round (one per open step, or max_batch), or the oldest one has
  /// waited for batch_wait.
  [[nodiscard]] bool round_is_due(Time now) const;
  /// Moves up to max_batch items to `round`, oldest first; those whose deadline has passed are
  /// refused.
  void take_round(Time now, std::vector<WaitingItem>& round);
  void round_ended(std::span<const WaitingItem> round, const wire::Outcome& outcome, Time now);
  /// A collective failed: homes ask again for the round's items when the pool goes on.
  void round_broke(std::span<const WaitingItem> round);
  /// An item of such a round has run all the same, and its client was answered.
  void has_run(const WaitingItem& item) { book_.ran(item.item); }
  /// Between orders: takes from workers that are being emptied what needs no copies, and gives room
  /// to those that lost a worker.
  void give_away(Time now);
  /// An order is due, whatever it holds.
  void want_order() noexcept { order_due_ = true; }
  /// Whether an admission or an end has to be ordered soon; resets it.
  [[nodiscard]] bool take_order_due() { return std::exchange(order_due_, false); }
  /// The next time at which the desk has to act even if no message arrives.
  [[nodiscard]] Time next_event(Time now) const;
  /// Whether the pool was asked to end and has no sequences left, or no time for them.
  [[nodiscard]] bool may_stop(Time now) const {
    return stop_at_ && (is_empty() || now >= *stop_at_);
  }
  /// Whether the pool was asked to end.
  [[nodiscard]] bool stops() const noexcept { return stop_at_.has_value(); }
  /// Begins or ends to empty a worker. Throws kFailedPrecondition where it would keep what it has.
  void drain_worker(const DrainWorker& request);
  /// Whether it holds no sequence.
  [[nodiscard]] bool is_empty() const noexcept { return book_.size() == 0; }

  [[nodiscard]] Sequencer& sequencer() noexcept { return sequencer_; }
  [[nodiscard]] const Sequencer& sequencer() const noexcept { return sequencer_; }
  /// Fills in sequences, draining, the control plane's incarnation.
  void describe(RegisterPool& pool) const;
  void fill(Heartbeat& heartbeat) const;

 private:
  void receive_items(const LeaderMail::Items& mail, Time now);
  /// Adds the item to `accepted`, refuses it, or holds it.
  void receive_item(WaitingItem waiting, Time now, std::vector<WaitingItem>& accepted);
  void receive_relay(const LeaderMail::Relay& mail, Time now);
  [[nodiscard]] wire::Outcome control(const wire::ControlItem& item, Time now);
  void receive_request(const ToPool& request, Time now);
  void admit(const Admit& request, Time now);
  void admitted(std::uint64_t request, const Sequence& sequence);
  void check_owner(const Parent& parent) const;
  void extend(SequenceId id, std::int64_t limit_tokens);
  void name_blocks(const wire::ControlItem& item);
  void free(SequenceId id, Time now);
  void end_sequence(SequenceId id, ErrorCode code, const std::string& reason, Time now);
  void commit(SequenceId id, std::int32_t accepted, Time now);
  void refuse(const WaitingItem& waiting, const wire::Outcome& outcome);
  void drop_waiting(SequenceId id, const wire::Outcome& outcome);
  void drop_items_of(int home);
  void rows_change(SequenceId id);
  void reply(std::uint64_t request, const wire::Outcome& outcome,
             std::optional<SequenceInfo> sequence = {});
  [[nodiscard]] const Sequence* find(SequenceId id) const;
  [[nodiscard]] std::vector<Extent> lost_rows(const Sequence& s) const;
  [[nodiscard]] std::vector<int> lost_workers() const;
  [[nodiscard]] SequenceInfo info(const Sequence& sequence) const;

  const LeaderConfig& config_;
  LeaderOutbox& outbox_;
  PoolMeter& meter_;
  Sequencer sequencer_;
  StepBook book_;
  LeaseBook leases_;
  std::deque<WaitingItem> waiting_;  // those that may run now; of each sequence one at most, like
  PartialCalls partial_calls_;       // those whose call goes on at another home
  std::vector<WaitingItem> held_;    // their sequences are not ready: tried again for a short while
  Time round_begin_{};
  Duration round_duration_{};  // of the last one
  bool order_due_ = false;
  Time next_give_away_{};
  bool draining_ = false;
  std::optional<Time> stop_at_;
  std::uint32_t last_incarnation_ = 0;
};

}  // namespace tributary
