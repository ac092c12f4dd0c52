// The leader of a pool, or its desk alone, without threads, workers and sockets: the clock is the
// test's, and a round does what the test says.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "core/interface/manual_clock.h"
#include "deploy/service/worker/leader/leader.h"

namespace tributary::test {

/// Leaves of one page, layers of two, no moves and no canaries.
[[nodiscard]] inline LeaderConfig rig_config(int workers = 2, std::int32_t pages = 64) {
  LeaderConfig config;
  config.sequencer.placement.workers = workers;
  config.sequencer.placement.model = default_cost_model(/*leaf_tokens=*/64, /*layers=*/2);
  config.sequencer.pages_per_worker = pages;
  config.sequencer.options.move_bytes_per_s = 0;
  config.options.canary_interval_ms = 0;
  return config;
}

[[nodiscard]] inline SequenceId rig_id(std::uint32_t number) {
  return (SequenceId{7} << 32) | number;
}

[[nodiscard]] inline wire::Items rig_items(std::uint64_t ticket, std::vector<StepItem> items,
                                           std::uint32_t deadline_us = 5'000'000,
                                           wire::CallPart part = {}) {
  return {.ticket = ticket, .deadline_us = deadline_us, .part = part, .items = std::move(items)};
}

[[nodiscard]] inline wire::ControlItem rig_control(wire::ControlOp op, const SequenceInfo& s,
                                                   std::int64_t length = 0) {
  return {.op = op, .sequence_id = s.id, .epoch = s.epoch, .length = length};
}

[[nodiscard]] inline StepItem rig_item(const SequenceInfo& s, std::int32_t layer = 0) {
  return {.id = s.id, .tokens = 1, .layer = layer, .epoch = s.epoch, .base_length = s.length};
}

/// A pool that ends at once when it is told to.
[[nodiscard]] inline LeaderConfig rig_at_once() {
  LeaderConfig config = rig_config();
  config.options.drain_timeout_ms = 0;
  return config;
}

/// All of the prompt's rows on worker `rank` have arrived.
[[nodiscard]] inline wire::Progress rig_progress(const SequenceInfo& s, int rank) {
  return {.rank = rank, .sequence_id = s.id, .epoch = s.epoch};
}

/// What the leader says, and when.
struct RigRecord {
  template <typename What>
  struct At {
    Time at;
    What what;
  };
  explicit RigRecord(const Clock& used) : clock(used) {}

  [[nodiscard]] LeaderLinks links() {
    return {.refuse = [this](int, wire::ItemsRefused one) { add(refused, std::move(one)); },
            .answer = [this](int, wire::ControlRelayReply one) { add(answered, std::move(one)); },
            .tell =
                [this](const FromPool& one) {
                  if (const auto* reply = std::get_if<PoolReply>(&one)) add(replies, *reply);
                  if (const auto* end = std::get_if<SequenceEnded>(&one)) add(ended, *end);
                  if (const auto* came = std::get_if<WorkerJoined>(&one)) add(joined, *came);
                  if (std::holds_alternative<Goodbye>(one)) ++goodbyes;
                },
            .round = {}};
  }
  void add(auto& to, auto what) { to.push_back({clock.now(), std::move(what)}); }
  void clear() {
    refused.clear();
    answered.clear();
    replies.clear();
    ended.clear();
  }

  const Clock& clock;
  std::vector<At<wire::ItemsRefused>> refused;
  std::vector<At<wire::ControlRelayReply>> answered;
  std::vector<At<PoolReply>> replies;
  std::vector<At<SequenceEnded>> ended;
  std::vector<At<WorkerJoined>> joined;
  int goodbyes = 0;
};

struct LeaderRig {
  explicit LeaderRig(LeaderConfig used = rig_config())
      : config(std::move(used)), inbox(config.sequencer.placement.workers, clock) {}

  /// Runs the leader until `end`, when the pool is told to stop.
  void run_until(Time end) {
    clock.at(end, [this] { inbox.post_stop(); });
    leader.run();
  }
  /// Plans an admission; its reply comes with its order.
  void admit_at(Time when, SequenceId id, std::int64_t prompt, std::int64_t max_new) {
    clock.at(when, [=, this] {
      post(Admit{
          .request = id, .id = id, .wanted = {.prompt_tokens = prompt, .max_new_tokens = max_new}});
    });
  }
  void post(ToPool request) { static_cast<void>(inbox.post_request(std::move(request))); }
  void post(const SequenceInfo& s, wire::Items items) {
    static_cast<void>(inbox.post_items(s.home, std::move(items)));
  }
  void post(const SequenceInfo& s, std::uint64_t ticket, wire::ControlItem item) {
    static_cast<void>(inbox.post_relay(s.home, {.ticket = ticket, .items = {item}}));
  }
  void renew(SequenceId id) {
    static_cast<void>(inbox.post_relay(
        0, {.ticket = 1, .items = {{.op = wire::ControlOp::kRenew, .sequence_id = id}}}));
  }
  /// Of the last admission that was answered.
  [[nodiscard]] SequenceInfo admitted() const {
    return record.replies.back().what.sequence.value();
  }
  [[nodiscard]] std::vector<Time> order_times() const {
    std::vector<Time> times;
    for (const auto& order : orders) times.push_back(order.at);
    return times;
  }

  [[nodiscard]] LeaderLinks links() {
    LeaderLinks links = record.links();
    links.leave_out = [this](int rank, const Status& reason) {
      if (on_leave_out) on_leave_out(rank, reason);
    };
    links.open_slot = [this](int /*rank*/) { opened.push_back(orders.size()); };
    links.take_in = [this](int /*rank*/) { taken_in.push_back(orders.size()); };
    links.accused = [this] { return accused; };
    return links;
  }

  ManualClock clock{Time(std::chrono::hours(1))};
  const Time begin = clock.now();
  LeaderConfig config;
  LeaderInbox inbox;
  RigRecord record{clock};
  std::vector<RigRecord::At<Order>> orders;
  std::function<void(int rank, const Status& reason)> on_leave_out;
  // After how many orders slots were opened, and newcomers taken in.
  std::vector<std::size_t> opened;
  std::vector<std::size_t> taken_in;
  std::optional<int> accused;
  Duration round_takes = std::chrono::milliseconds(1);
  /// The outcome of an order, at its end; no transfer is under way unless it says so.
  std::function<RoundReport(const Order&)> outcome = [](const Order& order) {
    RoundReport report;
    report.rounds = order.step.empty() ? 0 : 1;
    report.drained_round = order.round;
    report.regrouped = !order.members.empty();
    return report;
  };
  Leader leader{config,
                [this](const Order& order) {
                  record.add(orders, order);
                  if (!order.step.empty()) clock.advance(round_takes);
                  return outcome(order);
                },
                inbox, links(), clock};
};

}  // namespace tributary::test
