// The leader's desk in simulated time: what a request gets, and when.
#include "deploy/service/worker/leader/request_desk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/deploy/service/worker/leader/leader_rig.h"

namespace tributary::test {
namespace {

using std::chrono::microseconds, std::chrono::milliseconds, std::chrono::seconds;
using wire::ControlOp;

constexpr Duration kLease = seconds(30);
constexpr Duration kTick{1};

class RequestDeskTest : public testing::Test {
 protected:
  /// As the leader does with one message.
  void receive(const LeaderMail& mail) { desk.receive(mail, clock.now()); }
  void receive(ToPool request) {
    LeaderMail mail;
    mail.requests.push_back(std::move(request));
    receive(mail);
  }
  void receive(int rank, wire::Items items) {
    LeaderMail mail;
    mail.items.push_back({.rank = rank, .arrival = clock.now(), .items = std::move(items)});
    receive(mail);
  }
  void receive(const wire::Progress& progress) {
    LeaderMail mail;
    mail.progress.push_back({.arrival = clock.now(), .progress = progress});
    receive(mail);
  }
  wire::ControlReply::Item control(wire::ControlItem item) {
    LeaderMail mail;
    mail.relays.push_back({.rank = 0, .relay = {.ticket = 1, .items = {item}}});
    receive(mail);
    order();
    EXPECT_EQ(record.answered.size(), 1U);
    const auto verdict = record.answered.back().what;
    record.answered.clear();
    message = verdict.message;
    return verdict.items.at(0);
  }
  /// An order is carried out, and the answers leave.
  void order() {
    (void)desk.sequencer().take_order();
    (void)desk.take_order_due();
    outbox.order_done();
    outbox.send(links);
  }
  void send() { outbox.send(links); }
  PoolReply reply() {
    EXPECT_EQ(record.replies.size(), 1U);
    const PoolReply one = record.replies.back().what;
    record.replies.clear();
    return one;
  }
  SequenceInfo admit(std::uint32_t number, std::int64_t prompt = 0, std::int64_t max_new = 100) {
    receive(Admit{.request = number,
                  .id = rig_id(number),
                  .wanted = {.prompt_tokens = prompt, .max_new_tokens = max_new}});
    order();
    return reply().sequence.value();
  }
  static StepItem item(const SequenceInfo& s, std::int32_t layer = 0, std::int32_t tokens = 1) {
    return {
        .id = s.id, .tokens = tokens, .layer = layer, .epoch = s.epoch, .base_length = s.length};
  }
  /// Takes a round, which begins now and takes `duration`; returns its items.
  std::vector<StepItem> run_round(Duration duration = Duration{},
                                  const wire::Outcome& outcome = {}) {
    std::vector<WaitingItem> round;
    desk.take_round(clock.now(), round);
    std::vector<StepItem> items;
    for (const WaitingItem& waiting : round) items.push_back(waiting.item);
    if (!items.empty()) desk.sequencer().steps().order_round(items);
    clock.advance(duration);
    order();
    desk.round_ended(round, outcome, clock.now());
    send();
    return items;
  }
  /// The ends of leases up to now.
  std::vector<SequenceId> ended() {
    desk.end_leases(clock.now());
    send();
    std::vector<SequenceId> ids;
    for (const auto& end : record.ended) ids.push_back(end.what.id);
    record.ended.clear();
    return ids;
  }
  wire::ItemsRefused refusal() {
    send();
    EXPECT_EQ(record.refused.size(), 1U);
    const wire::ItemsRefused one =
        record.refused.empty() ? wire::ItemsRefused{} : record.refused.back().what;
    record.refused.clear();
    return one;
  }
  bool refused_nothing() {
    send();
    return record.refused.empty();
  }

  ManualClock clock{Time(std::chrono::hours(1))};
  LeaderConfig config = rig_config();
  LeaderOutbox outbox;
  PoolMeter meter;
  RigRecord record{clock};
  LeaderLinks links = record.links();
  RequestDesk desk{config, outbox, meter};
  std::string message;  // of the last control
};

TEST_F(RequestDeskTest, AnAdmissionIsAnsweredAfterItsOrder) {
  receive(
      Admit{.request = 5, .id = rig_id(1), .wanted = {.prompt_tokens = 0, .max_new_tokens = 1}});
  send();
  EXPECT_TRUE(record.replies.empty());
  EXPECT_TRUE(desk.take_order_due());
  order();
  const PoolReply answer = reply();
  EXPECT_EQ(answer.request, 5U);
  EXPECT_EQ(answer.code, ErrorCode::kOk);
  EXPECT_EQ(answer.sequence.value().id, rig_id(1));
  EXPECT_EQ(answer.sequence.value().state, SequenceState::kReady);
  EXPECT_EQ(meter.totals.admitted, 1U);
}

TEST_F(RequestDeskTest, AnAdmissionThatIsSentAgainIsAnsweredAgain) {
  Admit wanted{.request = 5,
               .id = rig_id(1),
               .wanted = {.prompt_tokens = 0, .max_new_tokens = 1, .idempotency_key = "k"}};
  receive(wanted);
  order();
  const PoolReply first = reply();
  receive(wanted);
  send();
  const PoolReply again = reply();
  EXPECT_EQ(again.code, ErrorCode::kOk);
  EXPECT_EQ(again.sequence.value().token, first.sequence.value().token);
  wanted.wanted.idempotency_key = "another";
  receive(wanted);
  send();
  EXPECT_EQ(reply().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(meter.totals.admitted, 1U);
}

TEST_F(RequestDeskTest, ARepeatedAdmissionIsNotAnsweredBeforeItsOrderEither) {
  const Admit wanted{.request = 5,
                     .id = rig_id(1),
                     .wanted = {.prompt_tokens = 64, .max_new_tokens = 1, .idempotency_key = "k"}};
  LeaderMail mail;
  mail.requests = {wanted, wanted};
  receive(mail);
  send();
  EXPECT_TRUE(record.replies.empty()) << "a client would push rows to workers that refuse them";
  order();
  EXPECT_EQ(record.replies.size(), 2U);
}

TEST_F(RequestDeskTest, WhatDoesNotFitIsRefusedAndLeavesNothing) {
  const auto code_of_admission = [&](SequenceId id, std::int64_t max_new) {
    receive(
        Admit{.request = 1, .id = id, .wanted = {.prompt_tokens = 0, .max_new_tokens = max_new}});
    send();
    return reply().code;
  };
  EXPECT_EQ(code_of_admission(0, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of_admission(rig_id(1), 2 * 64 * 64 + 1), ErrorCode::kTooLarge);
  (void)admit(2, 0, 2 * 63 * 64);
  EXPECT_EQ(code_of_admission(rig_id(3), 64 * 64), ErrorCode::kPoolFull);
  receive(SetDraining{.request = 2, .draining = true});
  send();
  EXPECT_EQ(reply().code, ErrorCode::kOk);
  EXPECT_EQ(code_of_admission(rig_id(4), 1), ErrorCode::kUnavailable);
  RegisterPool about;
  desk.describe(about);
  EXPECT_EQ(about.sequences.size(), 1U);
  EXPECT_TRUE(about.draining);
}

TEST_F(RequestDeskTest, ALeaseEndsToTheTickAndEachWordRenewsIt) {
  const Time begin = clock.now();
  const SequenceInfo silent = admit(1);
  const SequenceInfo renewed = admit(2);
  const SequenceInfo stepping = admit(3);
  const SequenceInfo pushed = admit(4, 64);
  clock.advance(seconds(10));
  EXPECT_EQ(control(rig_control(ControlOp::kRenew, renewed)).code, ErrorCode::kOk);
  clock.advance(seconds(1));
  receive(stepping.home, rig_items(1, {item(stepping)}));
  clock.advance(seconds(1));
  receive(rig_progress(pushed, pushed.extents.at(0).rank));
  clock.advance(kLease - seconds(12) - kTick);
  EXPECT_EQ(ended(), std::vector<SequenceId>{});
  EXPECT_EQ(desk.next_event(clock.now()), clock.now()) << "the item's round is due";
  EXPECT_EQ(run_round().size(), 0U) << "its deadline passed long ago";
  EXPECT_EQ(desk.next_event(clock.now()), begin + kLease);
  clock.advance(kTick);
  EXPECT_EQ(ended(), std::vector{silent.id});
  clock.advance(seconds(10) - kTick);
  EXPECT_EQ(ended(), std::vector<SequenceId>{});
  clock.advance(kTick);
  EXPECT_EQ(ended(), std::vector{renewed.id});
  clock.advance(seconds(1));
  EXPECT_EQ(ended(), std::vector{stepping.id});
  clock.advance(seconds(1));
  EXPECT_EQ(ended(), std::vector{pushed.id});
  EXPECT_EQ(meter.totals.leases_expired, 4U);
  EXPECT_EQ(desk.next_event(clock.now()), clock.now()) << "their ends have to be ordered";
  order();
  EXPECT_EQ(desk.next_event(clock.now()), Time::max());
}

TEST_F(RequestDeskTest, AnItemThatNoRoundTookBeforeItsDeadlineIsRefused) {
  const SequenceInfo s = admit(1);
  receive(s.home, rig_items(1, {item(s)}, 1000));
  clock.advance(microseconds(1000) - kTick);
  EXPECT_EQ(run_round().size(), 1U);
  EXPECT_TRUE(refused_nothing());
  receive(s.home, rig_items(2, {item(s, 1)}, 1000));
  clock.advance(microseconds(1000));
  EXPECT_EQ(run_round().size(), 0U);
  const wire::ItemsRefused late = refusal();
  EXPECT_EQ(late.ticket, 2U);
  EXPECT_EQ(late.items, std::vector<std::uint32_t>{0});
  EXPECT_EQ(late.outcome.code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(late.outcome.message, "no round began before the item's deadline");
  receive(s.home, rig_items(3, {item(s, 1)}));  // the step is still open: a retry runs
  EXPECT_EQ(run_round().size(), 1U);
}

TEST_F(RequestDeskTest, ARoundWaitsForTheItemsOfOpenStepsForTheBatchWait) {
  const SequenceInfo a = admit(1);
  const SequenceInfo b = admit(2);
  receive(a.home, rig_items(1, {item(a)}));
  EXPECT_TRUE(desk.round_is_due(clock.now())) << "it is the only open step";
  EXPECT_EQ(desk.next_event(clock.now()), clock.now());
  receive(b.home, rig_items(2, {item(b)}));
  EXPECT_EQ(run_round().size(), 2U);
  const Time arrival = clock.now();
  const microseconds wait(config.options.batch_wait_us);
  receive(a.home, rig_items(3, {item(a, 1)}));
  EXPECT_FALSE(desk.round_is_due(arrival)) << "the other open step has no item";
  EXPECT_EQ(desk.next_event(arrival), arrival + wait);
  EXPECT_FALSE(desk.round_is_due(arrival + wait - kTick));
  EXPECT_TRUE(desk.round_is_due(arrival + wait));
  receive(b.home, rig_items(4, {item(b, 1)}));
  EXPECT_TRUE(desk.round_is_due(arrival));
}

TEST_F(RequestDeskTest, ARoundHasMaxBatchItemsAtMostTheOldestFirst) {
  config.options.max_batch = 2;
  std::vector<SequenceInfo> all;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    all.push_back(admit(i));
    receive(all.back().home, rig_items(i, {item(all.back())}));
  }
  EXPECT_TRUE(desk.round_is_due(clock.now()));
  const auto first = run_round();
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0].id, all[0].id);
  EXPECT_EQ(first[1].id, all[1].id);
  EXPECT_EQ(run_round().size(), 1U);
}

TEST_F(RequestDeskTest, AnItemBeforeTheLastWordOfAnOwnerIsHeldForAGrace) {
  const SequenceInfo s = admit(1, 64);
  const int owner = s.extents.at(0).rank;
  const Time arrival = clock.now();
  receive(s.home, rig_items(1, {item(s)}));
  EXPECT_EQ(desk.next_event(arrival), arrival + milliseconds(5));
  clock.advance(milliseconds(50) - kTick);
  receive(LeaderMail{});
  EXPECT_TRUE(refused_nothing());
  EXPECT_FALSE(desk.round_is_due(clock.now()));
  clock.advance(kTick);
  receive(LeaderMail{});
  const wire::ItemsRefused refused = refusal();
  EXPECT_EQ(refused.outcome.code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(refused.outcome.message, "not ready: worker " + std::to_string(owner) +
                                         " has 0 of 128 rows, first missing layer 0 position 0");
  receive(s.home, rig_items(2, {item(s)}));
  clock.advance(milliseconds(20));
  receive(rig_progress(s, owner));
  EXPECT_TRUE(desk.round_is_due(clock.now()));
  EXPECT_EQ(run_round().size(), 1U);
  EXPECT_TRUE(refused_nothing());
}

TEST_F(RequestDeskTest, APartOfACallWaitsForTheRestAsLongAsTheLastRoundTook) {
  const SequenceInfo a = admit(1);
  const SequenceInfo b = admit(2);
  receive(a.home, rig_items(1, {item(a)}));
  receive(b.home, rig_items(2, {item(b)}));
  EXPECT_EQ(run_round(milliseconds(3)).size(), 2U);
  const auto part = [](std::uint64_t call) { return wire::CallPart{.call = call, .messages = 2}; };
  const Time first = clock.now();
  receive(a.home, rig_items(3, {item(a, 1)}, 5'000'000, part(9)));
  EXPECT_FALSE(desk.round_is_due(first + seconds(1)));
  EXPECT_EQ(desk.next_event(first), first + milliseconds(3));
  clock.advance(milliseconds(2));
  receive(b.home, rig_items(4, {item(b, 1)}, 5'000'000, part(9)));
  EXPECT_TRUE(desk.round_is_due(clock.now()));
  EXPECT_EQ(run_round(milliseconds(4)).size(), 2U);

  receive(a.home, rig_items(5, {item(a, 1)}, 5'000'000, part(10)));  // the rest does not come
  clock.advance(milliseconds(4) - kTick);
  receive(LeaderMail{});
  EXPECT_FALSE(desk.round_is_due(clock.now()));
  clock.advance(kTick);
  receive(LeaderMail{});
  EXPECT_TRUE(desk.round_is_due(clock.now())) << "its batch wait is over, too";
  EXPECT_EQ(run_round().size(), 1U);
}

TEST_F(RequestDeskTest, AStepIsCommittedByTheNextOneOrByAControl) {
  SequenceInfo s = admit(1);
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    receive(s.home, rig_items(1, {item(s, layer, 3)}));
    EXPECT_EQ(run_round(milliseconds(1)).size(), 1U);
  }
  s.length = 2;  // of the three tokens two were right
  receive(s.home, rig_items(2, {item(s)}));
  EXPECT_EQ(run_round(milliseconds(1)).size(), 1U);
  EXPECT_EQ(meter.totals.steps, 1U);
  EXPECT_EQ(meter.totals.tokens, 2U);
  EXPECT_DOUBLE_EQ(meter.totals.step_seconds.sum, 0.002);
  const auto early = control(rig_control(ControlOp::kCommit, s, 3));
  EXPECT_EQ(early.code, ErrorCode::kFailedPrecondition) << "its second layer has not run";
  EXPECT_EQ(early.length, 2);
  receive(s.home, rig_items(3, {item(s, 1)}));
  EXPECT_EQ(run_round(milliseconds(1)).size(), 1U);
  const auto committed = control(rig_control(ControlOp::kCommit, s, 3));
  EXPECT_EQ(committed.code, ErrorCode::kOk);
  EXPECT_EQ(committed.length, 3);
  EXPECT_DOUBLE_EQ(meter.totals.first_commit_seconds.sum, 0.002);
  EXPECT_DOUBLE_EQ(meter.totals.commit_interval_seconds.sum, 0.002);
  const auto shorter = control(rig_control(ControlOp::kTruncate, s, 1));
  EXPECT_EQ(shorter.code, ErrorCode::kOk);
  EXPECT_EQ(shorter.length, 1);
  EXPECT_EQ(shorter.epoch, s.epoch + 1);
  receive(s.home, rig_items(4, {item(s)}));
  EXPECT_EQ(refusal().outcome.code, ErrorCode::kStaleEpoch);
}

TEST_F(RequestDeskTest, AnAbortRefusesTheItemThatWaits) {
  const SequenceInfo s = admit(1);
  receive(s.home, rig_items(1, {item(s)}));
  EXPECT_EQ(control(rig_control(ControlOp::kCommit, s, 0)).code, ErrorCode::kOk);
  EXPECT_EQ(refusal().outcome.message, "the step was aborted");
  EXPECT_EQ(run_round().size(), 0U);
  EXPECT_EQ(meter.totals.aborted_steps, 1U);
  receive(s.home, rig_items(2, {item(s)}));
  receive(s.home, rig_items(3, {item(s, 1)}));
  EXPECT_EQ(refusal().ticket, 3U) << "another layer waits";
  EXPECT_EQ(control(rig_control(ControlOp::kFree, s)).code, ErrorCode::kOk);
  const wire::ItemsRefused freed = refusal();
  EXPECT_EQ(freed.ticket, 2U);
  EXPECT_EQ(freed.outcome.code, ErrorCode::kNotFound);
  EXPECT_EQ(record.ended.at(0).what.reason, "freed");
}

TEST_F(RequestDeskTest, TheAnswerToAFreeComesAfterTheNextOrder) {
  const SequenceInfo s = admit(1);
  LeaderMail mail;
  mail.relays.push_back(
      {.rank = 0, .relay = {.ticket = 1, .items = {rig_control(ControlOp::kFree, s)}}});
  receive(mail);
  send();
  EXPECT_TRUE(record.answered.empty());
  order();
  EXPECT_EQ(record.answered.size(), 1U);
  receive(Free{.request = 8, .id = s.id});
  send();
  EXPECT_EQ(reply().code, ErrorCode::kNotFound);
  const SequenceInfo other = admit(2);
  receive(Free{.request = 9, .id = other.id});
  send();
  EXPECT_TRUE(record.replies.empty());
  order();
  EXPECT_EQ(reply().code, ErrorCode::kOk);
  EXPECT_EQ(meter.totals.freed, 2U);
}

TEST_F(RequestDeskTest, AFailedRoundRefusesItsItemsAndTheStepStaysOpen) {
  const SequenceInfo s = admit(1);
  receive(s.home, rig_items(1, {item(s)}));
  EXPECT_EQ(run_round(milliseconds(1), {ErrorCode::kWorkerFailed, "planted"}).size(), 1U);
  EXPECT_EQ(refusal().outcome, (wire::Outcome{ErrorCode::kWorkerFailed, "planted"}));
  receive(s.home, rig_items(2, {item(s)}));
  EXPECT_EQ(run_round().size(), 1U);
  EXPECT_TRUE(refused_nothing());
}

TEST_F(RequestDeskTest, AnItemForAnotherHomeIsRefused) {
  const SequenceInfo s = admit(1);
  receive(1 - s.home, rig_items(1, {item(s)}));
  order();
  EXPECT_EQ(refusal().outcome.code, ErrorCode::kFailedPrecondition);
  receive(s.home, rig_items(2, {{.id = rig_id(99), .tokens = 1, .epoch = 1}}));
  EXPECT_EQ(refusal().outcome.code, ErrorCode::kNotFound);
  EXPECT_EQ(meter.totals.refused_items, 2U);
}

TEST_F(RequestDeskTest, APoolThatIsToldToStopWaitsForItsSequencesUntilTheDrainTimeout) {
  const SequenceInfo s = admit(1);
  LeaderMail mail;
  mail.stop = true;
  receive(mail);
  const Time end = clock.now() + milliseconds(config.options.drain_timeout_ms);
  EXPECT_EQ(desk.next_event(clock.now()), end);
  EXPECT_FALSE(desk.may_stop(end - kTick));
  EXPECT_TRUE(desk.may_stop(end));
  receive(SetDraining{.request = 3, .draining = false});
  send();
  EXPECT_EQ(reply().code, ErrorCode::kOk);
  receive(Admit{.request = 4, .id = rig_id(2), .wanted = {.max_new_tokens = 1}});
  send();
  EXPECT_EQ(reply().code, ErrorCode::kUnavailable) << "it ends all the same";
  EXPECT_EQ(control(rig_control(ControlOp::kFree, s)).code, ErrorCode::kOk);
  EXPECT_TRUE(desk.may_stop(clock.now()));
}

TEST_F(RequestDeskTest, ASequenceMovesHomeBetweenItsRequestsAndTheNextIsToldWhereOnceAllKnow) {
  config.sequencer.options.move_bytes_per_s = 1e9;
  const SequenceInfo s = admit(1);
  const auto home = [&] { return desk.sequencer().ledger().table().at(s.id).home; };
  receive(s.home, rig_items(1, {item(s)}));
  receive(DrainWorker{.request = 2, .worker = s.home, .draining = true});
  order();
  EXPECT_EQ(reply().code, ErrorCode::kOk);
  desk.give_away(clock.now());
  EXPECT_EQ(home(), s.home) << "a request waits there";
  EXPECT_EQ(run_round().size(), 1U);
  desk.give_away(clock.now());
  EXPECT_NE(home(), s.home);
  EXPECT_EQ(desk.next_event(clock.now()), clock.now()) << "an order is due";
  EXPECT_TRUE(desk.take_order_due());

  receive(s.home, rig_items(2, {item(s, 1)}));
  EXPECT_TRUE(refused_nothing()) << "its workers do not know yet";
  EXPECT_TRUE(desk.take_order_due());
  order();
  const wire::ItemsRefused refused = refusal();
  EXPECT_EQ(refused.ticket, 2U);
  EXPECT_EQ(refused.home, home());
  receive(home(), rig_items(3, {item(s, 1)}));
  EXPECT_EQ(run_round().size(), 1U);
  EXPECT_TRUE(refused_nothing());
}

TEST_F(RequestDeskTest, TheLastWorkerThatTakesSequencesIsNotDrained) {
  const auto drain = [&](int worker, bool draining) {
    receive(DrainWorker{.request = 1, .worker = worker, .draining = draining});
    send();
    return reply().code;
  };
  EXPECT_EQ(drain(0, true), ErrorCode::kFailedPrecondition) << "nothing moves in this pool";
  config.sequencer.options.move_bytes_per_s = 1e9;
  EXPECT_EQ(drain(0, true), ErrorCode::kOk);
  EXPECT_TRUE(desk.take_order_due());
  EXPECT_EQ(drain(1, true), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(drain(0, false), ErrorCode::kOk);
  EXPECT_EQ(drain(1, true), ErrorCode::kOk);
  EXPECT_EQ(drain(7, true), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary::test
