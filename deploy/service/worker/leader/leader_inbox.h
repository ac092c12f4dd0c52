// The inbox for the leader of a pool: messages from homes and owners (through its data plane), from
// the control plane, from a signal. It is the border between their threads and the leader's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "comm/transport/message_condition.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/clock.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

/// All messages since the last take().
struct LeaderMail {
  struct Items {
    int rank = 0;  // the home
    Time arrival{};
    wire::Items items;
  };
  struct Relay {
    int rank = 0;
    wire::ControlRelay relay;
  };
  struct Progress {
    Time arrival{};
    wire::Progress progress;
  };

  std::vector<Items> items;
  std::vector<Relay> relays;
  std::vector<Progress> progress;
  std::vector<ToPool> requests;
  std::vector<int> leaving;        // workers that were asked to end
  std::vector<WorkerInfo> joined;  // in the place of lost workers
  bool stop = false;
  bool order_wanted = false;
  Status ended;  // the pool has ended

  [[nodiscard]] bool empty() const noexcept;
  void clear();
};

/// Any thread may call post_*; only the leader's calls wait and take.
class LeaderInbox {
 public:
  struct Lost {
    int rank = 0;
    Status reason;
  };
  /// `workers`: ranks of the pool. `clock` says when a message came.
  LeaderInbox(int workers, Clock& clock);

  /// Returns false, and keeps nothing, if the leader is kMaxMessages behind; of relays each home
  /// has an equal share of them.
  [[nodiscard]] bool post_items(int rank, wire::Items items);
  [[nodiscard]] bool post_relay(int rank, wire::ControlRelay relay);
  [[nodiscard]] bool post_request(ToPool request);
  /// Keeps only the latest of a sequence and worker.
  void post_progress(const wire::Progress& progress);
  void post_beat(const wire::Beat& beat);
  /// A worker is here: at the start, or in the place of one that was lost, which it no longer is.
  void post_joined(const WorkerInfo& worker);
  /// A worker is gone. Only the first loss of a worker counts, until another one has joined. Ok: it
  /// has left, as it was asked to; nobody is told.
  void post_lost(int rank, const Status& reason);
  /// A worker was asked to end, and the pool was not.
  void post_leaving(int rank);
  /// The pool ends.
  void post_end(const Status& reason);
  /// A worker needs the next order.
  void post_order_wanted();
  /// Lets running sequences go on for a while, then ends the pool.
  void post_stop();

  /// See LeaderPort.
  void work_with(Transport* transport) { changed_.use(transport); }
  /// Ends the next wait(), or the one that goes on.
  void wake();
  /// Waits until something is posted, at most until `until`.
  void wait(Time until);
  /// The workers that were posted as lost since the last call, each once. Waits for one until
  /// `until`, or until the pool ends.
  [[nodiscard]] std::vector<Lost> take_lost(Time until);
  /// Replaces the contents of `mail` and reuses its memory. Of relays no more come at a time than
  /// have kControlsATime items, or one: in between the leader beats, and looks at other messages.
  void take(LeaderMail& mail);

  /// Waits until every other worker has joined; kDeadlineExceeded names a missing one.
  [[nodiscard]] Status wait_joined(Deadline deadline);
  /// A worker's last beat, and its age or, before the first, that of the worker's join. The leader
  /// itself, and those that are lost, have age 0.
  struct Heard {
    Duration age{};
    wire::Beat beat;
  };
  /// [worker].
  [[nodiscard]] std::vector<Heard> heard(Time now) const;
  /// The workers that were posted as lost and not taken.
  [[nodiscard]] std::vector<Lost> lost() const;
  /// `hear` is told of each loss when it is posted, on that thread. Set it before there are others.
  void on_lost(std::function<void(int rank, const Status&)> hear) { on_lost_ = std::move(hear); }

  /// Messages that clients can cause. A pool of 1024 running sequences has that many items at most.
  static constexpr std::size_t kMaxMessages = 16'384;
  static constexpr std::size_t kControlsATime = 4'096;  // some milliseconds

 private:
  struct Peer {
    bool joined = false;
    bool lost = false;
    Time heard{};
    wire::Beat beat;
    std::size_t relays = 0;  // of this home, in mail_
  };
  template <typename Message>
  [[nodiscard]] bool post(std::vector<Message>& messages, Message message);

  Clock& clock_;
  mutable std::mutex mutex_;
  MessageCondition changed_;
  LeaderMail mail_;
  std::map<std::pair<SequenceId, std::int32_t>, LeaderMail::Progress> progress_;
  std::vector<Lost> lost_;
  bool woken_ = false;
  bool completed_ = false;  // progress_ has an owner with all its rows
  std::vector<Peer> peers_;
  std::function<void(int, const Status&)> on_lost_;
};

}  // namespace tributary
