// The leader's answers: kept while it decides, sent when it holds no lock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/pool/pool_worker.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

/// The channels of the leader's messages. Called from its thread, with no lock held.
struct LeaderLinks {
  std::function<void(int rank, wire::ItemsRefused)> refuse;
  std::function<void(int rank, wire::ControlRelayReply)> answer;
  std::function<void(const FromPool&)> tell;  // the control plane
  std::function<void(const RoundReport&, std::size_t items, std::int64_t pages_used)>
      round;  // a round has ended; may be empty
  /// The pool goes on without this worker; may be empty.
  std::function<void(int rank, const Status& reason)> leave_out = {};
  /// All others have gone on without this worker: another one may take its place. May be empty.
  std::function<void(int rank)> open_slot = {};
  /// One has, and gets the next order; may be empty.
  std::function<void(int rank)> take_in = {};
  /// Who is to go if a collective failed and nobody is known to be lost (Accusations). May be
  /// empty.
  std::function<std::optional<int>()> accused = {};
  /// See Worker::follow; may be empty.
  std::function<bool()> between_orders = {};
};

/// Used by the leader's thread.
class LeaderOutbox {
 public:
  /// Item `index` of the home's `ticket` will not run.
  void refuse(int rank, std::uint64_t ticket, std::uint32_t index, const wire::Outcome& outcome) {
    add(refusals_, rank, {.ticket = ticket, .items = {index}, .outcome = outcome});
  }
  /// It will not, since worker `home` is its sequence's home; told after every worker knows that.
  void moved(int rank, std::uint64_t ticket, std::uint32_t index, const wire::Outcome& outcome,
             int home) {
    add(refusals_after_order_, rank,
        {.ticket = ticket, .items = {index}, .outcome = outcome, .home = home});
  }
  void answer(int rank, wire::ControlRelayReply verdicts) {
    answers_.emplace_back(rank, std::move(verdicts));
  }
  /// As answer(), after every worker has the next order.
  void answer_after_order(int rank, wire::ControlRelayReply verdicts) {
    answers_after_order_.emplace_back(rank, std::move(verdicts));
  }
  void tell(FromPool word) { words_.push_back(std::move(word)); }
  /// Sends `word` only after every worker has the next order.
  void tell_after_order(FromPool word) { words_after_order_.push_back(std::move(word)); }
  void order_done();

  void send(const LeaderLinks& links);

 private:
  using Refusals = std::vector<std::pair<int, wire::ItemsRefused>>;
  static void add(Refusals& refusals, int rank, wire::ItemsRefused refused);

  Refusals refusals_;
  Refusals refusals_after_order_;
  std::vector<std::pair<int, wire::ControlRelayReply>> answers_;
  std::vector<std::pair<int, wire::ControlRelayReply>> answers_after_order_;
  std::vector<FromPool> words_;
  std::vector<FromPool> words_after_order_;
};

}  // namespace tributary
