// Rank 0 of a pool that serves: takes what clients and the control plane ask for, decides, forms
// rounds, leads them, and tells those who asked.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/wire/messages.h"
#include "core/pool/sequencer.h"
#include "core/pool/worker.h"
#include "deploy/tier/pool_messages.h"
#include "deploy/tier/pool_metrics.h"
#include "deploy/worker/leader_inbox.h"
#include "deploy/worker/lease_book.h"
#include "deploy/worker/step_book.h"

namespace tributary {

struct LeaderConfig {
  SequencerConfig sequencer;
  int layers = 1;
  int heads = 1;
  wire::Token pool_key{};
  int max_batch = 256;
  std::chrono::microseconds batch_wait{50};
  std::chrono::milliseconds lease{30'000};
  std::chrono::milliseconds worker_timeout{3'000};
  std::chrono::milliseconds drain_timeout{10'000};
  std::chrono::milliseconds canary_interval{1'000};  // 0: never
  double canary_bound = 2e-2;
};

/// Where the leader's words go. Called from its thread, with no lock held.
struct LeaderLinks {
  std::function<void()> wake;  // all other workers: an order follows
  std::function<void(int rank, wire::ItemsRefused)> refuse;
  std::function<void(int rank, wire::ForwardReply)> answer;
  std::function<void(const FromPool&)> tell;  // the control plane
};

class Leader {
 public:
  Leader(const LeaderConfig& config, Worker& worker, LeaderInbox& inbox, LeaderLinks links);

  /// Until the inbox is told to stop: returns then, after every worker was told so. Throws what
  /// ends the pool: a worker that is gone or silent, a round that failed for good.
  void run();

  // From any thread.

  /// Fills in what the leader knows: sequences, draining, the control plane's incarnation.
  void describe(RegisterPool& pool) const;
  [[nodiscard]] Heartbeat heartbeat() const;

 private:
  using Time = Deadline::Clock::time_point;
  /// An item that waits for its round.
  struct Waiting {
    int rank = 0;  // its home
    std::uint64_t ticket = 0;
    std::uint32_t index = 0;  // in the home's message
    Time arrival{};
    Time deadline{};
    wire::RoundItem item;
  };

  void receive();
  void receive_items(const LeaderMail::Items& mail);
  void receive_item(Waiting waiting);
  void receive_forward(const LeaderMail::Forward& mail);
  [[nodiscard]] wire::Outcome control(const wire::ControlItem& item);
  void receive_request(const ToPool& request);
  void admit(const Admit& request);
  void end_leases();
  void end_sequence(SequenceId id, ErrorCode code, const std::string& reason);
  void commit(SequenceId id, std::int32_t accepted);

  void refuse(const Waiting& waiting, const wire::Outcome& outcome);
  void drop_waiting(SequenceId id, const wire::Outcome& outcome);
  void reply(std::uint64_t request, const wire::Outcome& outcome,
             std::optional<SequenceInfo> sequence = {});
  void send_answers();

  [[nodiscard]] bool round_is_due(Time now) const;
  [[nodiscard]] Time next_event(Time now) const;
  void form_round(Time now);
  [[nodiscard]] CanaryOrder choose_canary(Time now);
  void lead(bool stop);
  void finish_round(const RoundReport& report, double seconds);

  [[nodiscard]] const Sequence* find(SequenceId id) const;
  [[nodiscard]] SequenceInfo info(const Sequence& sequence) const;

  LeaderConfig config_;
  Worker& worker_;
  LeaderInbox& inbox_;
  LeaderLinks links_;

  /// Guards what follows between run() and describe() or heartbeat(); free while a round runs.
  mutable std::mutex mutex_;
  Sequencer sequencer_;
  StepBook book_;
  LeaseBook leases_;
  PoolMetrics metrics_;
  struct Attended {
    std::int64_t rows = 0;
    double seconds = 0;
  };
  std::vector<Attended> attended_;  // by rank
  bool draining_ = false;
  std::uint32_t last_incarnation_ = 0;

  // Of run()'s thread alone.
  LeaderMail mail_;
  std::deque<Waiting> waiting_;  // oldest first; of each sequence one at most
  std::vector<Waiting> held_;    // their sequences are not ready: asked again for a short while
  std::vector<Waiting> round_;   // the items of the round that is led
  std::vector<Sequencer::RoundRequest> requests_;
  bool order_due_ = false;  // somebody waits for what was decided
  Time last_order_{};
  Time next_canary_{};
  std::uint64_t canary_counter_ = 0;
  std::optional<Time> stop_at_;
  // Answers that go out after the lock is given up; admissions and ends after their order.
  std::vector<std::pair<int, wire::ItemsRefused>> refusals_;
  std::vector<std::pair<int, wire::ForwardReply>> answers_;
  std::vector<FromPool> words_;
  std::vector<FromPool> words_after_order_;
};

}  // namespace tributary
