// The leader in simulated time, on one thread: when it orders, answers and ends.
#include "deploy/service/worker/leader/leader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/worker/leader/leader_rig.h"

namespace tributary::test {
namespace {

using std::chrono::hours, std::chrono::microseconds, std::chrono::milliseconds,
    std::chrono::seconds;
using wire::ControlOp;

StepItem item(const SequenceInfo& s, std::int32_t layer = 0) {
  return {.id = s.id, .tokens = 1, .layer = layer, .epoch = s.epoch, .base_length = s.length};
}

LeaderConfig at_once() {
  LeaderConfig config = rig_config();
  config.options.drain_timeout_ms = 0;
  return config;
}

TEST(LeaderTest, AnIdlePoolGetsAnOrderEverySecond) {
  LeaderRig rig(at_once());
  rig.run_until(rig.begin + milliseconds(3'500));
  EXPECT_EQ(rig.order_times(),
            (std::vector{rig.begin + seconds(1), rig.begin + seconds(2), rig.begin + seconds(3),
                         rig.begin + milliseconds(3'500)}));
  for (const auto& order : rig.orders) EXPECT_EQ(order.what.stop, &order == &rig.orders.back());
}

TEST(LeaderTest, AnAdmissionIsOrderedAtOnceAndAnsweredWhenTheOrderHasEnded) {
  LeaderRig rig(at_once());
  const Time asked = rig.begin + milliseconds(300);
  rig.admit_at(asked, rig_id(1), 0, 100);
  const auto done = rig.outcome;
  rig.outcome = [&](const Order& order) {
    if (!order.ops.empty()) {
      EXPECT_TRUE(rig.record.replies.empty());
      rig.clock.advance(milliseconds(7));
    }
    return done(order);
  };
  rig.run_until(rig.begin + milliseconds(500));
  ASSERT_EQ(rig.orders.size(), 2U);
  EXPECT_EQ(rig.orders[0].at, asked);
  ASSERT_EQ(rig.record.replies.size(), 1U);
  EXPECT_EQ(rig.record.replies[0].at, asked + milliseconds(7));
}

TEST(LeaderTest, PagesOfAnEndedSequenceAreAskedForUntilTransfersIntoThemHaveEnded) {
  LeaderRig rig(at_once());
  rig.admit_at(rig.begin, rig_id(1), 64, 64);
  rig.clock.at(rig.begin + milliseconds(10),
               [&] { rig.post(Free{.request = 2, .id = rig_id(1)}); });
  const auto done = rig.outcome;
  rig.outcome = [&](const Order& order) {  // a transfer is under way for 125 ms
    RoundReport report = done(order);
    if (rig.clock.now() < rig.begin + milliseconds(125)) report.drained_round = 0;
    return report;
  };
  std::map<Time, std::int32_t> used;
  for (const int ms : {5, 50, 120, 170}) {
    rig.clock.at(rig.begin + milliseconds(ms), [&] {
      std::int32_t sum = 0;
      for (const auto& worker : rig.leader.heartbeat().workers) sum += worker.pages_used;
      used[rig.clock.now()] = sum;
    });
  }
  rig.run_until(rig.begin + milliseconds(500));
  EXPECT_EQ(rig.order_times(),
            (std::vector{rig.begin, rig.begin + milliseconds(10), rig.begin + milliseconds(60),
                         rig.begin + milliseconds(110), rig.begin + milliseconds(160),
                         rig.begin + milliseconds(500)}));
  EXPECT_EQ(rig.record.replies.at(1).at, rig.begin + milliseconds(10)) << "it has ended";
  EXPECT_EQ(used, (std::map<Time, std::int32_t>{{rig.begin + milliseconds(5), 1},
                                                {rig.begin + milliseconds(50), 1},
                                                {rig.begin + milliseconds(120), 1},
                                                {rig.begin + milliseconds(170), 0}}));
}

TEST(LeaderTest, ARoundBeginsWhenItsItemsAreThereOrAfterTheBatchWait) {
  LeaderRig rig(at_once());
  std::vector<SequenceInfo> s;
  rig.admit_at(rig.begin, rig_id(1), 0, 100);
  rig.admit_at(rig.begin + milliseconds(1), rig_id(2), 0, 100);
  const Time first = rig.begin + milliseconds(10);
  rig.clock.at(first, [&] {
    for (const auto& reply : rig.record.replies) s.push_back(reply.what.sequence.value());
    for (std::size_t i = 0; i < 2; ++i) rig.post(s.at(i), rig_items(i, {item(s[i])}));
  });
  const Time second = rig.begin + milliseconds(20);
  rig.clock.at(second, [&] { rig.post(s.at(0), rig_items(7, {item(s[0], 1)})); });
  rig.run_until(rig.begin + milliseconds(100));
  ASSERT_EQ(rig.orders.size(), 5U);
  EXPECT_EQ(rig.orders[2].at, first);
  EXPECT_EQ(rig.orders[2].what.step.size(), 2U);
  EXPECT_EQ(rig.orders[3].at, second + microseconds(rig.config.options.batch_wait_us));
  EXPECT_EQ(rig.orders[3].what.step.size(), 1U);
  EXPECT_TRUE(rig.record.refused.empty());
  const PoolMetrics metrics = rig.leader.heartbeat().metrics;
  EXPECT_EQ(metrics.rounds, 2U);
  EXPECT_DOUBLE_EQ(metrics.round_seconds.sum, 0.002);
  EXPECT_NEAR(metrics.wait_seconds.sum, 50e-6, 1e-12);
}

TEST(LeaderTest, AWorkerThatFailedInARoundFailsItsItemsAndTheNextRoundRuns) {
  LeaderRig rig(at_once());
  rig.admit_at(rig.begin, rig_id(1), 0, 100);
  const auto step = [&] { rig.post(rig.admitted(), rig_items(1, {item(rig.admitted())})); };
  rig.clock.at(rig.begin + milliseconds(10), step);
  rig.clock.at(rig.begin + milliseconds(20), step);
  const auto done = rig.outcome;
  rig.outcome = [&](const Order& order) {
    RoundReport report = done(order);
    if (!order.step.empty() && rig.clock.now() < rig.begin + milliseconds(15)) {
      report.status = {ErrorCode::kWorkerFailed, "planted"};
    }
    return report;
  };
  rig.run_until(rig.begin + milliseconds(100));
  ASSERT_EQ(rig.record.refused.size(), 1U);
  EXPECT_EQ(rig.record.refused[0].at, rig.begin + milliseconds(10) + rig.round_takes);
  EXPECT_EQ(rig.record.refused[0].what.outcome,
            (wire::Outcome{ErrorCode::kWorkerFailed, "planted"}));
  EXPECT_EQ(rig.orders.at(2).what.step.size(), 1U);
  EXPECT_EQ(rig.leader.heartbeat().metrics.failed_rounds, 1U);
}

/// Its last page is not there yet: the next order copies it.
TEST(LeaderTest, AForkWhoseOrderFailedIsAnsweredAfterTheNextOne) {
  LeaderRig rig(at_once());
  rig.admit_at(rig.begin, rig_id(1), 100, 100);
  const Time arrived = rig.begin + milliseconds(10);
  const Time asked = rig.begin + milliseconds(20);
  rig.clock.at(arrived, [&] {
    const SequenceInfo parent = rig.admitted();
    for (const Extent& extent : parent.extents) {
      rig.inbox.post_progress(rig_progress(parent, extent.rank));
    }
  });
  rig.clock.at(asked, [&] {
    const SequenceInfo parent = rig.admitted();
    Admit fork{.request = 2, .id = rig_id(2), .wanted = {.prompt_tokens = 90, .max_new_tokens = 1}};
    fork.wanted.parent = {
        .id = parent.id, .epoch = parent.epoch, .length = 90, .token = parent.token};
    rig.post(fork);
    fork.id = rig_id(3);
    fork.wanted.parent.token[3] ^= 1;
    rig.post(fork);
  });
  const auto done = rig.outcome;
  rig.outcome = [&](const Order& order) {
    RoundReport report = done(order);
    if (rig.clock.now() == asked) report.status = {ErrorCode::kWorkerFailed, "planted"};
    return report;
  };
  rig.run_until(rig.begin + milliseconds(500));
  ASSERT_EQ(rig.orders.size(), 4U);
  EXPECT_EQ(rig.orders[1].at, asked);
  EXPECT_EQ(rig.orders[2].what.copies, rig.orders[1].what.copies);
  EXPECT_EQ(rig.orders[2].what.copies.at(0).rows, 90 - 64);
  EXPECT_TRUE(rig.orders[3].what.copies.empty());
  ASSERT_EQ(rig.record.replies.size(), 3U);
  EXPECT_EQ(rig.record.replies[1].what.code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(rig.record.replies[2].at, rig.orders[2].at);
  EXPECT_EQ(rig.record.replies[2].what.sequence.value().present_tokens, 90);
}

TEST(LeaderTest, ARoundThatFailedForGoodEndsThePool) {
  LeaderRig rig(at_once());
  rig.outcome = [](const Order&) {
    RoundReport report;
    report.status = {ErrorCode::kDeadlineExceeded, "worker 1 is missing"};
    return report;
  };
  EXPECT_EQ(message_of([&] { rig.leader.run(); }), "worker 1 is missing");
  EXPECT_EQ(rig.clock.now(), rig.begin + seconds(1));
}

RoundReport broken() {
  RoundReport report;
  report.status = {ErrorCode::kDeadlineExceeded, "worker 1 is missing"};
  report.broken = true;
  return report;
}

const Status kGone{ErrorCode::kWorkerFailed, "worker 1 is gone"};

TEST(LeaderTest, APoolGoesOnWithoutALostWorkerAtOnce) {
  LeaderRig rig(at_once());
  const Time lost = rig.begin + milliseconds(1'234);
  rig.clock.at(lost, [&] {
    rig.inbox.post_lost(1, kGone);
    rig.inbox.post_lost(1, kGone);  // once is enough
  });
  rig.run_until(rig.begin + milliseconds(2'500));
  EXPECT_EQ(rig.order_times(), (std::vector{rig.begin + seconds(1), lost, lost + seconds(1),
                                            rig.begin + milliseconds(2'500)}));
  for (const auto& order : rig.orders) {
    EXPECT_EQ(order.what.members, order.at == lost ? std::vector{0} : std::vector<std::int32_t>{});
  }
}

/// A sequence has run meanwhile, whose rows the newcomer never had.
TEST(LeaderTest, AnotherWorkerTakesTheSlotOfALostOne) {
  LeaderRig rig(at_once());
  const Time lost = rig.begin + milliseconds(100);
  const Time came = rig.begin + milliseconds(300);
  const WorkerInfo newcomer{.rank = 1, .host = "h", .address = "tcp://h:9", .threads = 2};
  rig.clock.at(lost, [&] { rig.inbox.post_lost(1, kGone); });
  rig.admit_at(rig.begin + milliseconds(200), rig_id(1), 64, 10);
  rig.clock.at(came, [&] { rig.inbox.post_joined(newcomer); });
  std::vector<bool> gone;
  for (const Time at : {came - milliseconds(1), came + milliseconds(50)}) {
    rig.clock.at(at, [&] { gone.push_back(rig.leader.heartbeat().workers[1].lost); });
  }
  rig.run_until(rig.begin + milliseconds(400));
  EXPECT_EQ(gone, (std::vector{true, false}));
  std::vector<Order> regrouped;
  std::vector<std::size_t> orders_before;
  for (std::size_t i = 0; i < rig.orders.size(); ++i) {
    if (rig.orders[i].what.members.empty()) continue;
    regrouped.push_back(rig.orders[i].what);
    orders_before.push_back(i);
  }
  ASSERT_EQ(regrouped.size(), 2U);
  EXPECT_EQ(regrouped[0].generation, 1U);
  EXPECT_FALSE(regrouped[0].table);
  EXPECT_EQ(regrouped[1].members, (std::vector{0, 1}));
  EXPECT_EQ(regrouped[1].generation, 2U);
  ASSERT_TRUE(regrouped[1].table);
  ASSERT_EQ(regrouped[1].table->size(), 1U);
  EXPECT_EQ(regrouped[1].table->at(0).id, rig_id(1));
  EXPECT_EQ(rig.opened, std::vector{orders_before[0] + 1}) << "all others have regrouped";
  EXPECT_EQ(rig.taken_in, std::vector{orders_before[1]}) << "before its first order";
  ASSERT_EQ(rig.record.joined.size(), 1U);
  EXPECT_EQ(rig.record.joined[0].what.worker.address, "tcp://h:9");
  RegisterPool card;
  card.workers.resize(2);
  rig.leader.describe(card);
  EXPECT_EQ(card.workers[1].threads, 2);
}

TEST(LeaderTest, ASlotStaysClosedUntilTheOthersHaveRegrouped) {
  LeaderRig rig(rig_config(3));
  int tries = 0;
  const auto done = rig.outcome;
  rig.outcome = [&](const Order& order) {
    if (order.members.empty() || ++tries > 1) return done(order);
    rig.inbox.post_lost(2, kGone);  // one more, meanwhile
    return broken();
  };
  rig.clock.at(rig.begin + milliseconds(100), [&] { rig.inbox.post_lost(1, kGone); });
  rig.run_until(rig.begin + milliseconds(400));
  EXPECT_EQ(rig.opened, (std::vector<std::size_t>{2, 2}))
      << "not after the first order, which broke";
}

TEST(LeaderTest, WhoIsLostBeforeItWasTakenInFreesTheSlotAgain) {
  LeaderRig rig(at_once());
  const WorkerInfo newcomer{.rank = 1, .host = "h", .address = "tcp://h:9", .threads = 2};
  rig.clock.at(rig.begin + milliseconds(100), [&] { rig.inbox.post_lost(1, kGone); });
  rig.clock.at(rig.begin + milliseconds(300), [&] {
    rig.inbox.post_joined(newcomer);
    rig.inbox.post_lost(1, kGone);
  });
  rig.clock.at(rig.begin + milliseconds(500), [&] { rig.inbox.post_joined(newcomer); });
  rig.run_until(rig.begin + milliseconds(600));
  EXPECT_EQ(rig.opened.size(), 2U);
  EXPECT_EQ(rig.taken_in.size(), 1U) << "the second one";
}

// It holds the home and all rows of a sequence.
TEST(LeaderTest, AWorkerThatIsAskedToEndLeavesWhenItHoldsNothing) {
  for (const bool empties : {true, false}) {
    LeaderConfig config = rig_config();
    if (empties) config.sequencer.options.move_bytes_per_s = 1e9;
    config.options.drain_timeout_ms = 2'000;
    LeaderRig rig(config);
    const Time asked = rig.begin + seconds(1);
    rig.admit_at(rig.begin + milliseconds(1), rig_id(1), 64, 0);
    int home = -1;
    rig.clock.at(rig.begin + milliseconds(5), [&] {
      home = rig.admitted().home;
      for (const int rank : {0, 1}) rig.inbox.post_progress(rig_progress(rig.admitted(), rank));
    });
    rig.clock.at(asked, [&] {
      for (int again = 0; again < 3; ++again) rig.inbox.post_leaving(1);
    });
    std::vector<std::pair<int, Status>> left_out;
    Time left{};
    rig.on_leave_out = [&](int rank, const Status& reason) {
      left_out.emplace_back(rank, reason);
      left = rig.clock.now();
    };
    std::vector<bool> shown;
    rig.clock.at(asked + seconds(3), [&] {
      for (const auto& worker : rig.leader.heartbeat().workers) shown.push_back(worker.left);
    });
    rig.run_until(asked + seconds(4));
    ASSERT_EQ(left_out.size(), 1U);
    EXPECT_EQ(left_out[0].first, 1);
    EXPECT_TRUE(left_out[0].second.ok()) << "it is not lost";
    // A pool that moves nothing has no reason to wait.
    if (!empties || home == 0) {
      EXPECT_EQ(left, asked);
    } else {
      EXPECT_LT(left, asked + milliseconds(200));
    }
    EXPECT_EQ(shown, (std::vector{false, true}));
  }
}

TEST(LeaderTest, AWorkerThatIsLostWhileItLeavesIsLostOnce) {
  LeaderRig rig(rig_config(/*workers=*/3));
  rig.clock.at(rig.begin + seconds(1), [&] {
    rig.inbox.post_leaving(1);
    rig.inbox.post_lost(1, kGone);
  });
  rig.clock.at(rig.begin + seconds(2), [&] { rig.inbox.post_leaving(1); });
  int left_out = 0;
  rig.on_leave_out = [&](int, const Status&) { ++left_out; };
  rig.run_until(rig.begin + seconds(4));
  EXPECT_EQ(left_out, 1);
}

TEST(LeaderTest, AWorkerIsNotSeenOffWhenAllOthersEndToo) {
  LeaderRig rig;
  rig.on_leave_out = [](int rank, const Status&) { ADD_FAILURE() << "worker " << rank; };
  rig.clock.at(rig.begin + seconds(1), [&] {
    rig.inbox.post_stop();
    rig.inbox.post_leaving(1);
  });
  rig.leader.run();
  EXPECT_EQ(rig.record.goodbyes, 1);
}

TEST(LeaderTest, AnOrderThatBrokeIsFollowedByNoneUntilTheLostWorkerIsKnown) {
  LeaderRig rig(at_once());
  const auto done = rig.outcome;
  rig.outcome = [&](const Order& order) { return rig.orders.size() == 1 ? broken() : done(order); };
  const Time lost = rig.begin + milliseconds(4'200);
  rig.clock.at(lost, [&] { rig.inbox.post_lost(1, kGone); });
  rig.run_until(lost + milliseconds(500));
  EXPECT_EQ(rig.order_times(),
            (std::vector{rig.begin + seconds(1), lost, lost + milliseconds(500)}));
  EXPECT_EQ(rig.orders[1].what.members, std::vector{0});
}

// The link between them is cut, and the leader hears both.
TEST(LeaderTest, AWorkerThatOthersWaitedForInVainIsLost) {
  LeaderRig rig(rig_config(/*workers=*/3));
  const Time broke = rig.begin + seconds(1);
  rig.outcome = [&](const Order& order) {
    RoundReport report;
    report.drained_round = order.round;
    if (rig.clock.now() == broke) {
      report.broken = true;
      report.status = {ErrorCode::kCommunicatorPoisoned, "rank 1: missing: 2"};
    }
    return report;
  };
  rig.accused = 2;
  std::vector<std::pair<int, std::string>> left_out;
  rig.on_leave_out = [&](int rank, const Status& reason) {
    left_out.emplace_back(rank, reason.message());
  };
  rig.run_until(broke + seconds(4));
  EXPECT_EQ(left_out,
            (std::vector{std::pair(2, std::string("other workers waited for worker 2 in vain"))}));
  ASSERT_GE(rig.orders.size(), 2U);
  EXPECT_EQ(rig.orders[1].at, broke + seconds(2));
  EXPECT_EQ(rig.orders[1].what.members, (std::vector{0, 1}));
}

TEST(LeaderTest, WhereNobodyIsLostTheOrderThatBrokeEndsThePool) {
  LeaderRig rig(at_once());
  rig.outcome = [](const Order&) { return broken(); };
  EXPECT_EQ(message_of([&] { rig.leader.run(); }), "worker 1 is missing");
  EXPECT_EQ(rig.clock.now(), rig.begin + seconds(1) + rig.config.failure_timeout);
}

/// A round of two sequences breaks: the one whose home has its answer goes on, the other is asked
/// for again by its home.
TEST(LeaderTest, ARoundThatBrokeIsRunAgainForThoseWhoseHomesAskAndForNobodyElse) {
  LeaderRig rig(rig_config(3));
  std::vector<SequenceInfo> sequences;
  for (const std::uint32_t n : {1U, 2U}) rig.admit_at(rig.begin, rig_id(n), 0, 100);
  std::uint64_t broke = 0;
  const auto done = rig.outcome;
  rig.outcome = [&](const Order& order) {
    if (!order.step.empty() && broke == 0) {
      broke = order.round;
      rig.inbox.post_lost(2, kGone);
      return broken();
    }
    RoundReport report = done(order);
    report.completed_rounds.assign(3, 0);
    if (!order.members.empty()) report.completed_rounds[0] = broke;
    return report;
  };
  rig.clock.at(rig.begin + milliseconds(10), [&] {
    for (const auto& reply : rig.record.replies) sequences.push_back(reply.what.sequence.value());
    for (const SequenceInfo& s : sequences) rig.post(s, rig_items(s.id, {item(s)}));
  });
  rig.clock.at(rig.begin + milliseconds(200), [&] {
    for (const SequenceInfo& s : sequences) {
      if (s.home == 1) rig.post(s, rig_items(s.id, {item(s)}));
    }
  });
  rig.clock.at(rig.begin + milliseconds(250), [&] {
    for (const SequenceInfo& s : sequences) rig.post(s, rig_items(s.id + 100, {item(s, 1)}));
  });
  rig.clock.at(rig.begin + milliseconds(300), [&] {
    for (const SequenceInfo& s : sequences) {
      rig.post(s, s.id, rig_control(ControlOp::kCommit, s, 1));
    }
  });
  rig.run_until(rig.begin + milliseconds(400));
  ASSERT_EQ(sequences.size(), 2U);
  EXPECT_NE(sequences[0].home, sequences[1].home);
  EXPECT_TRUE(rig.record.refused.empty()) << rig.record.refused[0].what.outcome.message;
  ASSERT_EQ(rig.record.answered.size(), 2U);
  for (const auto& answer : rig.record.answered) {
    EXPECT_EQ(answer.what.items.at(0).code, ErrorCode::kOk) << answer.what.message;
  }
}

TEST(LeaderTest, ASequenceThatLostRowsSaysSoAndGoesOnWhenTheyHaveCome) {
  LeaderRig rig(rig_config(2));
  rig.clock.at(rig.begin, [&] {
    rig.post(Admit{
        .request = 1,
        .id = rig_id(1),
        .wanted = {.prompt_tokens = 256, .max_new_tokens = 64, .spread = SpreadPolicy::kAll}});
  });
  SequenceInfo s;
  rig.clock.at(rig.begin + milliseconds(10), [&] {
    s = rig.admitted();
    for (const int rank : {0, 1}) rig.inbox.post_progress(rig_progress(s, rank));
  });
  rig.clock.at(rig.begin + milliseconds(20), [&] { rig.inbox.post_lost(1, kGone); });
  SequenceInfo now;
  rig.clock.at(rig.begin + milliseconds(30), [&] {
    SequenceInfo at_leader = s;
    at_leader.home = 0;
    rig.post(at_leader, rig_items(7, {item(s)}));
    rig.post(at_leader, 8, rig_control(ControlOp::kReady, s));
    rig.post(Query{.request = 2, .id = s.id});
  });
  rig.clock.at(rig.begin + milliseconds(40), [&] {
    now = rig.record.replies.back().what.sequence.value();
    rig.post(now, rig_items(9, {item(now)}));  // held, and refused: rows are missing
  });
  rig.clock.at(rig.begin + milliseconds(200), [&] {
    wire::Progress progress = rig_progress(now, 0);
    progress.rows_total = 2 * 128;
    rig.inbox.post_progress(progress);  // of before: it says nothing about what is missing
    rig.post(now, 10, rig_control(ControlOp::kReady, now));
  });
  rig.clock.at(rig.begin + milliseconds(300), [&] {
    wire::Progress progress = rig_progress(now, 0);
    progress.rows_total = 2 * 256;
    rig.inbox.post_progress(progress);
    rig.post(now, 11, rig_control(ControlOp::kReady, now));
    rig.post(now, rig_items(12, {item(now)}));
    rig.post(Query{.request = 3, .id = s.id});
  });
  rig.run_until(rig.begin + milliseconds(400));
  EXPECT_EQ(now.epoch, 2U);
  EXPECT_EQ(now.home, 0);
  EXPECT_EQ(now.lost_workers, std::vector{1});
  ASSERT_FALSE(now.lost.empty());
  std::int64_t rows = 0;
  for (const Extent& lost : now.lost) {
    EXPECT_EQ(lost.rank, 0);
    EXPECT_EQ(lost.end - lost.begin, 64) << "a leaf each";
    rows += 64;
  }
  EXPECT_EQ(rows, 128);
  const auto& refused = rig.record.refused;
  ASSERT_EQ(refused.size(), 2U);
  EXPECT_EQ(refused[0].what.outcome.code, ErrorCode::kWorkerLost);
  EXPECT_EQ(refused[1].what.outcome.code, ErrorCode::kFailedPrecondition);
  const auto ready = [&](std::size_t i) { return rig.record.answered.at(i).what.items.at(0).code; };
  EXPECT_EQ(ready(0), ErrorCode::kWorkerLost);
  EXPECT_EQ(ready(1), ErrorCode::kUnavailable);
  EXPECT_EQ(ready(2), ErrorCode::kOk);
  EXPECT_TRUE(rig.record.replies.back().what.sequence.value().lost.empty());
  // Its pool registers with it, also when it has grown since.
  RegisterPool pool;
  rig.leader.describe(pool);
  ASSERT_EQ(pool.sequences.size(), 1U);
  EXPECT_EQ(pool.sequences[0].extents.back().end, s.prompt_tokens);
  EXPECT_EQ(pool.sequences[0].lost_workers, std::vector{1});
}

TEST(LeaderTest, APoolThatIsToldToStopEndsWithItsLastSequenceOrAtTheDrainTimeout) {
  for (const bool freed : {true, false}) {
    LeaderRig rig;
    rig.admit_at(rig.begin, rig_id(1), 0, 100);
    if (freed) {
      rig.clock.at(rig.begin + seconds(3), [&] {
        rig.post(rig.admitted(), 1, rig_control(ControlOp::kFree, rig.admitted()));
      });
    }
    rig.run_until(rig.begin + seconds(1));
    const Duration drain = milliseconds(rig.config.options.drain_timeout_ms);
    EXPECT_EQ(rig.clock.now(), rig.begin + (freed ? Duration(seconds(3)) : seconds(1) + drain));
    EXPECT_TRUE(rig.orders.back().what.stop);
    EXPECT_EQ(rig.record.answered.size(), freed ? 1U : 0U);
    EXPECT_EQ(rig.record.goodbyes, freed ? 1 : 0) << "with sequences it is a loss";
  }
}

TEST(LeaderTest, ARoundInEachIntervalHasACanary) {
  LeaderConfig config = at_once();
  config.options.canary_interval_ms = 250;
  LeaderRig rig(config);
  rig.admit_at(rig.begin, rig_id(1), 0, 100);
  for (int i = 1; i <= 10; ++i) {
    rig.clock.at(rig.begin + i * milliseconds(100),
                 [&] { rig.post(rig.admitted(), rig_items(1, {item(rig.admitted())})); });
  }
  rig.run_until(rig.begin + milliseconds(1'050));
  std::vector<Time> canaries;
  for (const auto& order : rig.orders) {
    if (order.what.canary.item < 0) continue;
    canaries.push_back(order.at);
    EXPECT_LT(order.what.canary.head, config.attention().heads);
  }
  EXPECT_EQ(canaries,
            (std::vector{rig.begin + milliseconds(100), rig.begin + milliseconds(400),
                         rig.begin + milliseconds(700), rig.begin + milliseconds(1'000)}));
}

TEST(LeaderTest, AHeartbeatSaysSinceWhenEachWorkerIsSilent) {
  LeaderRig rig(at_once());
  wire::Beat beat;
  beat.rank = 1;
  rig.inbox.post_joined({.rank = 1});
  rig.clock.at(rig.begin + milliseconds(700), [&] { rig.inbox.post_beat(beat); });
  rig.run_until(rig.begin + seconds(2));
  const Heartbeat heartbeat = rig.leader.heartbeat();
  EXPECT_EQ(heartbeat.workers.at(0).heartbeat_age_ms, 0);
  EXPECT_EQ(heartbeat.workers.at(1).heartbeat_age_ms, 1'300);
}

/// Clients come once a minute and renew their lease every 20 s, for up to seven minutes. Once a
/// minute an item comes whose deadline is shorter than the batch wait.
TEST(LeaderTest, AHundredHoursOfLeasesAndDeadlines) {
  LeaderRig rig(at_once());
  const Duration lease = milliseconds(rig.config.options.lease_ms);
  constexpr int kClients = 100 * 60;
  std::map<SequenceId, Time> expected;  // end of its lease
  SequenceInfo a;
  SequenceInfo b;
  rig.admit_at(rig.begin, rig_id(1), 0, 100);
  rig.admit_at(rig.begin + seconds(1), rig_id(2), 0, 100);
  rig.clock.at(rig.begin + seconds(2), [&] {
    a = rig.record.replies.at(0).what.sequence.value();
    b = rig.record.replies.at(1).what.sequence.value();
    rig.post(a, rig_items(1, {item(a)}));
    rig.post(b, rig_items(2, {item(b)}));
  });
  const std::function<void()> each_ten_seconds = [&] {
    rig.renew(a.id);
    rig.renew(b.id);
    rig.clock.after(seconds(10), each_ten_seconds);
  };
  rig.clock.at(rig.begin + seconds(3), each_ten_seconds);
  std::vector<Time> late;
  for (int i = 0; i < kClients; ++i) {
    const SequenceId id = rig_id(static_cast<std::uint32_t>(i) + 10);
    const Time come = rig.begin + i * std::chrono::minutes(1) + seconds(4);
    rig.admit_at(come, id, 0, 64);
    const Time last = come + (i % 7) * std::chrono::minutes(1) + milliseconds(i);
    for (Time t = come + seconds(20); t < last; t += seconds(20)) {
      rig.clock.at(t, [&rig, id] { rig.renew(id); });
    }
    rig.clock.at(last, [&rig, id] { rig.renew(id); });
    expected[id] = last + lease;
    late.push_back(come + seconds(7) + microseconds(rig.config.options.batch_wait_us));
    rig.clock.at(come + seconds(7), [&] { rig.post(a, rig_items(9, {item(a, 1)}, 10)); });
  }
  const Time end = rig.begin + kClients * std::chrono::minutes(1);
  rig.run_until(end);
  std::erase_if(expected, [&](const auto& one) { return one.second > end; });
  EXPECT_GT(expected.size(), kClients - 10U);
  ASSERT_EQ(rig.record.ended.size(), expected.size());
  for (const auto& ended : rig.record.ended) {
    EXPECT_EQ(ended.at, expected.at(ended.what.id)) << ended.what.id;
    EXPECT_EQ(ended.what.reason, "lease_expired");
  }
  ASSERT_EQ(rig.record.refused.size(), late.size());
  for (std::size_t i = 0; i < late.size(); ++i) {
    EXPECT_EQ(rig.record.refused[i].at, late[i]);
    EXPECT_EQ(rig.record.refused[i].what.outcome.code, ErrorCode::kDeadlineExceeded);
  }
}

}  // namespace
}  // namespace tributary::test
