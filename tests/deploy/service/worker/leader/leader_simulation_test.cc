// The leader, its desk and its sequencer among simulated clients and workers, in simulated time and
// from one seed. After each order everything must add up; a seed repeats its run bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/hash.h"
#include "core/base/limits.h"
#include "tests/deploy/service/worker/leader/leader_rig.h"
#include "tests/dice.h"

namespace tributary::test {
namespace {

using std::chrono::microseconds, std::chrono::milliseconds, std::chrono::seconds;
using wire::ControlOp;

constexpr Duration kLongestOrder = milliseconds(400);
/// An answer that waits for nothing but orders: one that runs, and its own.
constexpr Duration kAnswerTime = 2 * kLongestOrder + milliseconds(50);
constexpr Duration kComing = seconds(30);  // of clients

LeaderConfig draw_config(Dice& dice) {
  LeaderConfig config = rig_config(static_cast<int>(dice.between(1, 4)),
                                   static_cast<std::int32_t>(dice.between(12, 48)));
  config.sequencer.placement.model =
      default_cost_model(dice.one_in(2) ? 64 : 128, static_cast<int>(dice.between(1, 3)));
  if (dice.one_in(2)) config.sequencer.options.move_bytes_per_s = 1e9;
  config.options.lease_ms = static_cast<int>(dice.between(500, 3000));
  config.options.max_batch = static_cast<int>(dice.between(1, 8));
  config.options.drain_timeout_ms = 60'000;
  config.options.canary_interval_ms = 100;
  return config;
}

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : dice_(seed), config_(draw_config(dice_)) {}

  /// Runs until the pool has ended in order.
  void run() {
    const auto admissions = static_cast<int>(dice_.between(120, 140));
    for (int i = 0; i < admissions; ++i) at(dice_.up_to(kComing), [this] { come(); });
    at(kComing, [this] { inbox_.post_stop(); });
    leader_.run();
    EXPECT_EQ(table_.size(), 0U) << "the drain timeout is longer than all leases";
    check();
    EXPECT_TRUE(items_.empty()) << "each item was answered";
    EXPECT_TRUE(controls_.empty()) << "each control was answered";
    EXPECT_TRUE(requests_.empty()) << "each request of the control plane was answered";
  }

  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  [[nodiscard]] int events() const { return events_; }
  [[nodiscard]] int faults() const { return faults_; }
  [[nodiscard]] int orders() const { return orders_; }

 private:
  /// A client and its sequence. `epoch`, `length`, `open` are what it was told.
  struct Client {
    SequenceInfo s;
    std::int64_t limit = 0;
    std::uint32_t epoch = 1;
    std::int64_t length = 0;
    struct Step {
      std::int64_t base = 0;
      std::int32_t tokens = 0;
      std::int32_t layers = 0;  // that have run
    };
    std::optional<Step> open;
    bool gone = false;      // says nothing any more
    bool admitted = false;  // and has not ended
    bool ending = false;    // its end was asked for
    bool changing = false;  // a control that changes epoch or length was not answered
    Time last_word{};       // that renewed its lease, or did so at the latest
    std::uint32_t acknowledged_epoch = 0;
    std::int64_t acknowledged_length = 0;
  };
  struct Item {
    SequenceId client = 0;
    StepItem item;
    int home = 0;  // that it was sent to
    bool running = false;
  };
  struct Control {
    SequenceId client = 0;
    wire::ControlItem item;
  };

  void at(Duration delay, std::function<void()> event) {
    clock_.after(delay, [this, event = std::move(event)] {
      ++events_;
      event();
    });
  }
  /// Whether a fault that comes once in `n` times comes now.
  bool fault(std::int64_t n) {
    const bool now = dice_.one_in(n);
    faults_ += now ? 1 : 0;
    return now;
  }
  void note(std::uint64_t value) { hash_ = mix64(hash_ ^ (value + kGoldenGamma)); }
  void note_now(std::uint64_t what) {
    note(what);
    note(static_cast<std::uint64_t>(clock_.now().time_since_epoch().count()));
  }
  void must_be_answered(const auto& waiting, std::uint64_t key, Duration within) {
    clock_.after(within, [&waiting, key, within] {
      EXPECT_FALSE(waiting.contains(key)) << key << " has no answer after " << within.count();
    });
  }
  Client& client(SequenceId id) { return clients_.at(id); }
  void word(Client& c) { c.last_word = std::max(c.last_word, clock_.now()); }

  // What clients do.

  void come() {
    const SequenceId id = rig_id(++last_client_);
    Client& c = clients_[id];
    c.s.id = id;
    const Admit wanted{.request = ++last_request_,
                       .id = id,
                       .wanted = {.prompt_tokens = dice_.one_in(3) ? 0 : dice_.between(1, 500),
                                  .max_new_tokens = dice_.between(1, 200),
                                  .spread = static_cast<SpreadPolicy>(dice_.roll(3)),
                                  .idempotency_key = "key"}};
    c.limit = wanted.wanted.prompt_tokens + wanted.wanted.max_new_tokens;
    c.length = wanted.wanted.prompt_tokens;
    word(c);
    ask(wanted);
    if (fault(8)) {  // the answer is lost, or late, and it asks again
      Admit again = wanted;
      again.request = ++last_request_;
      if (dice_.one_in(4)) again.wanted.idempotency_key = "of another";
      at(dice_.up_to(milliseconds(100)), [this, again] { ask(again); });
    }
    if (fault(12)) {
      ask(SetDraining{.request = ++last_request_, .draining = true});
      at(dice_.up_to(milliseconds(200)),
         [this] { ask(SetDraining{.request = ++last_request_, .draining = false}); });
    }
    if (dice_.one_in(12)) {
      const int worker = static_cast<int>(dice_.roll(config_.sequencer.placement.workers));
      ask(DrainWorker{.request = ++last_request_, .worker = worker, .draining = dice_.one_in(2)});
    }
  }

  template <typename Request>
  void ask(const Request& request) {
    SequenceId id = 0;
    if constexpr (std::is_same_v<Request, Admit> || std::is_same_v<Request, Free>) id = request.id;
    requests_[request.request] = id;
    EXPECT_TRUE(inbox_.post_request(request));
    must_be_answered(requests_, request.request, kAnswerTime);
  }

  /// The rows of the prompt arrive at their owners, who tell the leader.
  void push(Client& c) {
    std::set<int> owners;
    for (const Extent& extent : c.s.extents) owners.insert(extent.rank);
    for (const int rank : owners) {
      if (fault(20)) continue;  // they never come
      at(dice_.up_to(milliseconds(120)), [this, id = c.s.id, rank] {
        inbox_.post_progress(rig_progress(client(id).s, rank));
        word(client(id));
      });
    }
  }

  void act_after(Client& c, Duration delay) {
    at(delay, [this, id = c.s.id] { act(client(id)); });
  }

  void act(Client& c) {
    if (c.gone || !c.admitted || c.ending) return;
    if (fault(25)) {
      c.gone = true;
      return;
    }
    const auto what = dice_.roll(20);
    if (what == 0) return control(c, ControlOp::kRenew, 0);
    if (what == 1) return control(c, ControlOp::kReady, 0);
    if (what == 2) return control(c, ControlOp::kExtend, c.limit + dice_.between(0, 100));
    if (what == 3 && !c.open) {
      return control(c, ControlOp::kTruncate,
                     c.length - dice_.roll(std::min<std::int64_t>(c.length + 1, 100)));
    }
    if (what == 4 && c.open) return control(c, ControlOp::kCommit, c.open->base);
    if (what == 5 && c.open && c.open->layers == layers()) {
      return control(c, ControlOp::kCommit, c.open->base + dice_.roll(c.open->tokens + 1));
    }
    if (what == 6 && dice_.one_in(3)) return leave(c);
    step(c);
  }

  void leave(Client& c) {
    c.ending = true;
    if (dice_.one_in(2)) {
      control(c, ControlOp::kFree, 0);
    } else {
      ask(Free{.request = ++last_request_, .id = c.s.id});
    }
  }

  void step(Client& c) {
    if (!c.open || c.open->layers == layers()) {
      const std::int64_t base = c.open ? c.open->base + dice_.between(1, c.open->tokens) : c.length;
      const auto tokens = static_cast<std::int32_t>(dice_.between(1, 3));
      if (base + tokens > c.limit) return leave(c);
      c.length = base;
      c.open = typename Client::Step{.base = base, .tokens = tokens, .layers = 0};
    }
    StepItem item{.id = c.s.id,
                  .tokens = c.open->tokens,
                  .layer = c.open->layers,
                  .epoch = c.epoch,
                  .base_length = c.open->base};
    Duration deadline = milliseconds(dice_.between(100, 1000));
    if (fault(30)) deadline = microseconds(dice_.between(1, 60));  // too short for most rounds
    if (fault(40)) --item.epoch;
    if (fault(40)) item.base_length += 7;
    wire::CallPart part;
    if (fault(20)) part = {.call = ++last_request_, .messages = 2};  // the second never comes
    const int home = fault(40) ? c.s.home + 1 : c.s.home;
    send(c, home, item, deadline, part);
    if (fault(25)) send(c, c.s.home, item, deadline, {});  // twice
  }

  void send(Client& c, int home, const StepItem& item, Duration deadline, wire::CallPart part) {
    const std::uint64_t ticket = ++last_ticket_;
    items_[ticket] = {c.s.id, item, home};
    const auto us = std::chrono::duration_cast<microseconds>(deadline).count();
    EXPECT_TRUE(
        inbox_.post_items(home, rig_items(ticket, {item}, static_cast<std::uint32_t>(us), part)));
    word(c);
    // It begins by its deadline and ends with its round; a held one is refused after its grace.
    must_be_answered(items_, ticket, deadline + kAnswerTime);
  }

  void control(Client& c, ControlOp op, std::int64_t length) {
    const std::uint64_t ticket = ++last_ticket_;
    wire::ControlItem item{.op = op, .sequence_id = c.s.id, .epoch = c.epoch, .length = length};
    c.changing = c.changing || op == ControlOp::kTruncate || op == ControlOp::kCommit;
    controls_[ticket] = {c.s.id, item};
    EXPECT_TRUE(inbox_.post_relay(c.s.home, {.ticket = ticket, .items = {item}}));
    word(c);
    must_be_answered(controls_, ticket, kAnswerTime);
  }

  // What it is told. An answer counts as said when the leader has said it; a client may not hear
  // it.

  void told(const PoolReply& reply) {
    note_now(reply.request);
    note(static_cast<std::uint64_t>(reply.code));
    const auto found = requests_.find(reply.request);
    ASSERT_NE(found, requests_.end()) << "answered twice";
    const SequenceId id = found->second;
    requests_.erase(found);
    if (id == 0 || !reply.sequence) {
      if (id != 0 && reply.code == ErrorCode::kOk) ended(client(id));
      return;
    }
    Client& c = client(id);
    if (c.admitted) return;  // it had asked twice
    EXPECT_TRUE(table_.contains(id)) << "every worker has it";
    c.s = *reply.sequence;
    c.admitted = true;
    c.acknowledged_epoch = c.s.epoch;
    c.acknowledged_length = c.s.length;
    if (fault(15)) {
      c.gone = true;
      return;
    }
    push(c);
    act_after(c, dice_.up_to(milliseconds(150)));
  }

  void told(const SequenceEnded& end) {
    note_now(end.id);
    Client& c = client(end.id);
    ASSERT_TRUE(c.admitted) << "it ends once";
    if (end.reason == "lease_expired") {
      const Duration lease = milliseconds(config_.options.lease_ms);
      EXPECT_GE(clock_.now(), c.last_word + lease);
      EXPECT_LE(clock_.now(), c.last_word + lease + kAnswerTime);
      c.admitted = false;
      note(1);
    } else {
      EXPECT_EQ(end.reason, "freed");
      EXPECT_TRUE(c.ending);
      c.admitted = false;
    }
  }

  void ended(Client& c) {
    EXPECT_FALSE(table_.contains(c.s.id)) << "no worker has it";
    c.admitted = false;
  }

  void refused(const wire::ItemsRefused& refused) {
    note_now(refused.ticket);
    note(static_cast<std::uint64_t>(refused.outcome.code));
    ASSERT_EQ(refused.items, std::vector<std::uint32_t>{0});
    const auto found = items_.find(refused.ticket);
    ASSERT_NE(found, items_.end()) << "answered twice";
    Client& c = client(found->second.client);
    items_.erase(found);
    if (refused.home >= 0 && table_.contains(c.s.id)) {
      EXPECT_EQ(refused.home, table_.at(c.s.id).home) << "every worker knows it";
      c.s.home = refused.home;
    }
    // It does not know any more what has run: it gives its step back, or begins the layer again.
    if (dice_.one_in(2) && c.open) {
      act_control_later(c, ControlOp::kCommit, c.open->base);
    } else {
      act_after(c, dice_.up_to(milliseconds(60)));
    }
  }
  void act_control_later(Client& c, ControlOp op, std::int64_t length) {
    at(dice_.up_to(milliseconds(60)), [this, id = c.s.id, op, length] {
      Client& later = client(id);
      if (!later.gone && later.admitted && !later.ending) control(later, op, length);
    });
  }

  void answered(const wire::ControlRelayReply& reply) {
    note_now(reply.ticket);
    const auto found = controls_.find(reply.ticket);
    ASSERT_NE(found, controls_.end()) << "answered twice";
    ASSERT_EQ(reply.items.size(), 1U);
    const wire::ControlReply::Item verdict = reply.items[0];
    note(static_cast<std::uint64_t>(verdict.code));
    note(static_cast<std::uint64_t>(verdict.length));
    const wire::ControlItem item = found->second.item;
    Client& c = client(found->second.client);
    controls_.erase(found);
    if (item.op == ControlOp::kFree) {
      if (verdict.code == ErrorCode::kOk) ended(c);
      return;
    }
    c.changing = std::ranges::any_of(controls_, [&](const auto& one) {
      return one.second.client == c.s.id && (one.second.item.op == ControlOp::kTruncate ||
                                             one.second.item.op == ControlOp::kCommit);
    });
    if (verdict.code == ErrorCode::kOk && verdict.epoch != 0) {
      c.acknowledged_epoch = verdict.epoch;
      c.acknowledged_length = verdict.length;
    }
    if (fault(15)) {  // it does not hear it: what it says next is out of date
      act_after(c, dice_.up_to(milliseconds(100)));
      return;
    }
    if (verdict.code == ErrorCode::kNotFound) return;
    if (item.op == ControlOp::kCommit || item.op == ControlOp::kTruncate) {
      c.open.reset();
      c.epoch = verdict.epoch;
      c.length = verdict.length;
    }
    if (item.op == ControlOp::kExtend && verdict.code == ErrorCode::kOk) {
      c.limit = std::max(c.limit, item.length);
    }
    act_after(c, dice_.up_to(milliseconds(20)));
  }

  // What workers do.

  RoundReport lead(const Order& order) {
    ++orders_;
    note_now(order.round);
    for (const std::byte b : encode_order(order)) note(static_cast<std::uint64_t>(b));
    EXPECT_EQ(order.round, ++round_);
    for (const TableOp& op : order.ops) {
      if (const auto* end = std::get_if<FreeOp>(&op))
        closed_.push_back({round_, table_.at(end->id)});
      table_.apply(op);
    }
    check();
    std::vector<std::uint64_t> running;
    for (const StepItem& item : order.step) running.push_back(claim(item));
    EXPECT_LE(std::ssize(order.step), config_.options.max_batch);
    Duration takes = microseconds(dice_.between(50, 2000));
    if (fault(60)) takes = dice_.up_to(kLongestOrder);
    clock_.advance(takes);
    RoundReport report;
    report.rounds = order.step.empty() ? 0 : 1;
    report.copy_us = order.copies.empty() ? 0 : 100;
    report.drained_round =
        round_ - std::min<std::uint64_t>(
                     round_, static_cast<std::uint64_t>(dice_.one_in(4) ? dice_.roll(4) : 0));
    if (!order.step.empty() && fault(25)) {
      report.status = {ErrorCode::kWorkerFailed, "worker 0 failed"};
      return report;
    }
    for (const std::uint64_t ticket : running) ran(ticket);
    std::erase_if(closed_, [&](const auto& one) { return one.first <= report.drained_round; });
    return report;
  }

  /// The request of an item of a round: the oldest at its sequence's home that asks for it.
  std::uint64_t claim(const StepItem& wanted) {
    EXPECT_EQ(table_.at(wanted.id).epoch, wanted.epoch);
    EXPECT_EQ(table_.at(wanted.id).length, wanted.base_length);
    for (auto& [ticket, one] : items_) {
      const StepItem& item = one.item;
      if (item.id != wanted.id || item.layer != wanted.layer || item.tokens != wanted.tokens ||
          item.epoch != wanted.epoch || item.base_length != wanted.base_length || one.running ||
          one.home != table_.at(wanted.id).home) {
        continue;
      }
      one.running = true;
      return ticket;
    }
    ADD_FAILURE() << "nobody asked for layer " << wanted.layer << " of sequence " << wanted.id;
    return 0;
  }

  void ran(std::uint64_t ticket) {
    const auto found = items_.find(ticket);
    ASSERT_NE(found, items_.end());
    const Item done = found->second;
    items_.erase(found);
    Client& c = client(done.client);
    // Its step was opened, so that what it begins with was committed.
    if (c.acknowledged_epoch == done.item.epoch) {
      c.acknowledged_length = std::max(c.acknowledged_length, done.item.base_length);
    }
    if (fault(20)) {  // the output is lost on its way
      act_after(c, dice_.up_to(milliseconds(200)));
      return;
    }
    if (c.open && c.open->base == done.item.base_length && c.open->layers == done.item.layer) {
      ++c.open->layers;
    }
    act_after(c, dice_.up_to(milliseconds(3)));
  }

  // What must hold after each order, when no worker is behind.

  void check() {
    const Heartbeat heartbeat = leader_.heartbeat();
    std::vector<std::int64_t> reserved(heartbeat.workers.size());
    std::vector<std::set<std::int32_t>> used(heartbeat.workers.size());
    const auto count = [&](const Sequence& s) {
      for (std::size_t i = 0; i < s.leaves.size(); ++i) {
        const auto owner = static_cast<std::size_t>(s.leaves[i].owner);
        for (const std::int32_t page : s.leaves[i].pages) {
          EXPECT_TRUE(used.at(owner).insert(page).second) << "page " << page << " has two owners";
        }
        const std::int64_t leaf_tokens = table_.leaf_tokens();
        const std::int64_t rows = std::clamp<std::int64_t>(
            s.limit_tokens - static_cast<std::int64_t>(i) * leaf_tokens, 0, leaf_tokens);
        reserved.at(owner) +=
            ceil_div(rows, std::int64_t{kPageTokens}) - std::ssize(s.leaves[i].pages);
      }
    };
    for (const auto& [round, s] : closed_) count(s);
    for (const auto& [id, c] : clients_) {
      if (!table_.contains(id)) {
        EXPECT_TRUE(!c.admitted || c.ending || lease_is_over(c)) << "sequence " << id << " is lost";
        continue;
      }
      count(table_.at(id));
      check_acknowledged(table_.at(id), c);
    }
    const bool moves = config_.sequencer.options.move_bytes_per_s > 0;
    for (const auto& worker : heartbeat.workers) {
      const auto r = static_cast<std::size_t>(worker.rank);
      const std::int32_t total = config_.sequencer.pages_per_worker;
      EXPECT_LE(worker.pages_used + worker.pages_reserved, total);
      if (moves) {  // those that leaves are on their way to
        EXPECT_GE(worker.pages_used, std::ssize(used[r]));
        EXPECT_GE(worker.pages_reserved, reserved[r]);
      } else {
        EXPECT_EQ(worker.pages_reserved, reserved[r]);
        EXPECT_EQ(worker.pages_used, std::ssize(used[r]));
      }
    }
  }

  bool lease_is_over(const Client& c) const {
    return clock_.now() >= c.last_word + milliseconds(config_.options.lease_ms);
  }

  void check_acknowledged(const Sequence& s, const Client& c) {
    if (!c.admitted || c.changing) return;
    EXPECT_EQ(s.epoch, c.acknowledged_epoch) << "sequence " << s.id;
    EXPECT_GE(s.length, c.acknowledged_length) << "sequence " << s.id;
  }

  [[nodiscard]] int layers() const { return config_.sequencer.placement.model.layers; }

  Dice dice_;
  LeaderConfig config_;
  ManualClock clock_{Time(std::chrono::hours(1))};
  LeaderInbox inbox_{config_.sequencer.placement.workers, clock_};
  std::map<SequenceId, Client> clients_;
  std::map<std::uint64_t, Item> items_;           // by ticket, those without an answer
  std::map<std::uint64_t, Control> controls_;     // likewise
  std::map<std::uint64_t, SequenceId> requests_;  // likewise, of the control plane
  SequenceTable table_{config_.sequencer.placement.model.leaf_tokens};  // the workers' own
  std::vector<std::pair<std::uint64_t, Sequence>> closed_;  // by round; their pages are not free
  std::uint64_t round_ = 0;
  std::uint32_t last_client_ = 0;
  std::uint64_t last_request_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::uint64_t hash_ = 0;
  int events_ = 0;
  int faults_ = 0;
  int orders_ = 0;
  Leader leader_{config_,
                 [this](const Order& order) { return lead(order); },
                 inbox_,
                 {.refuse = [this](int, const wire::ItemsRefused& one) { refused(one); },
                  .answer = [this](int, const wire::ControlRelayReply& one) { answered(one); },
                  .tell =
                      [this](const FromPool& one) {
                        if (const auto* reply = std::get_if<PoolReply>(&one)) told(*reply);
                        if (const auto* end = std::get_if<SequenceEnded>(&one)) told(*end);
                      },
                  .round = {}},
                 clock_};
};

class LeaderSimulation : public testing::TestWithParam<std::uint64_t> {};

TEST_P(LeaderSimulation, EverythingAddsUpAndTheSeedRepeatsItsRun) {
  Simulation first(GetParam());
  first.run();
  EXPECT_GE(first.events(), 1000);
  EXPECT_GE(first.faults(), 50);
  EXPECT_GE(first.orders(), 300);
  if (HasFailure()) return;
  Simulation again(GetParam());
  again.run();
  EXPECT_EQ(again.hash(), first.hash());
  EXPECT_EQ(again.events(), first.events());
}

INSTANTIATE_TEST_SUITE_P(Seeds, LeaderSimulation, testing::Range<std::uint64_t>(0, 20));

}  // namespace
}  // namespace tributary::test
