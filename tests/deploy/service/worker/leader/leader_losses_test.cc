// The leader in simulated time, on one thread: workers that are lost, that leave, and that come in
// their places.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "deploy/service/worker/leader/leader.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/worker/leader/leader_rig.h"

namespace tributary::test {
namespace {

using std::chrono::milliseconds, std::chrono::seconds;
using wire::ControlOp;

RoundReport broken() {
  RoundReport report;
  report.status = {ErrorCode::kDeadlineExceeded, "worker 1 is missing"};
  report.broken = true;
  return report;
}

const Status kGone{ErrorCode::kWorkerFailed, "worker 1 is gone"};

TEST(LeaderLosses, APoolGoesOnWithoutALostWorkerAtOnce) {
  LeaderRig rig(rig_at_once());
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
TEST(LeaderLosses, AnotherWorkerTakesTheSlotOfALostOne) {
  LeaderRig rig(rig_at_once());
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

TEST(LeaderLosses, ASlotStaysClosedUntilTheOthersHaveRegrouped) {
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

TEST(LeaderLosses, WhoIsLostBeforeItWasTakenInIsNotTakenIn) {
  LeaderRig rig(rig_at_once());
  const WorkerInfo newcomer{.rank = 1, .host = "h", .address = "tcp://h:9", .threads = 2};
  rig.clock.at(rig.begin + milliseconds(100), [&] { rig.inbox.post_lost(1, kGone); });
  rig.clock.at(rig.begin + milliseconds(300), [&] {
    rig.inbox.post_joined(newcomer);
    rig.inbox.post_lost(1, kGone);
  });
  rig.clock.at(rig.begin + milliseconds(500), [&] { rig.inbox.post_joined(newcomer); });
  rig.run_until(rig.begin + milliseconds(600));
  EXPECT_EQ(rig.taken_in.size(), 1U) << "the second one";
}

// It holds the home and all rows of a sequence.
TEST(LeaderLosses, AWorkerThatIsAskedToEndLeavesWhenItHoldsNothing) {
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

TEST(LeaderLosses, AWorkerThatIsLostWhileItLeavesIsLostOnce) {
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

TEST(LeaderLosses, AWorkerIsNotSeenOffWhenAllOthersEndToo) {
  LeaderRig rig;
  rig.on_leave_out = [](int rank, const Status&) { ADD_FAILURE() << "worker " << rank; };
  rig.clock.at(rig.begin + seconds(1), [&] {
    rig.inbox.post_stop();
    rig.inbox.post_leaving(1);
  });
  rig.leader.run();
  EXPECT_EQ(rig.record.goodbyes, 1);
}

TEST(LeaderLosses, AnOrderThatBrokeIsFollowedByNoneUntilTheLostWorkerIsKnown) {
  LeaderRig rig(rig_at_once());
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
TEST(LeaderLosses, AWorkerThatOthersWaitedForInVainIsLost) {
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

TEST(LeaderLosses, WhereNobodyIsLostTheOrderThatBrokeEndsThePool) {
  LeaderRig rig(rig_at_once());
  rig.outcome = [](const Order&) { return broken(); };
  EXPECT_EQ(message_of([&] { rig.leader.run(); }), "worker 1 is missing");
  EXPECT_EQ(rig.clock.now(), rig.begin + seconds(1) + rig.config.failure_timeout);
}

/// A round of two sequences breaks: the one whose home has its answer goes on, the other is asked
/// for again by its home.
TEST(LeaderLosses, ARoundThatBrokeIsRunAgainForThoseWhoseHomesAskAndForNobodyElse) {
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
    for (const SequenceInfo& s : sequences) rig.post(s, rig_items(s.id, {rig_item(s)}));
  });
  rig.clock.at(rig.begin + milliseconds(200), [&] {
    for (const SequenceInfo& s : sequences) {
      if (s.home == 1) rig.post(s, rig_items(s.id, {rig_item(s)}));
    }
  });
  rig.clock.at(rig.begin + milliseconds(250), [&] {
    for (const SequenceInfo& s : sequences) rig.post(s, rig_items(s.id + 100, {rig_item(s, 1)}));
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

TEST(LeaderLosses, ASequenceThatLostRowsSaysSoAndGoesOnWhenTheyHaveCome) {
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
    rig.post(at_leader, rig_items(7, {rig_item(s)}));
    rig.post(at_leader, 8, rig_control(ControlOp::kReady, s));
    rig.post(Query{.request = 2, .id = s.id});
  });
  rig.clock.at(rig.begin + milliseconds(40), [&] {
    now = rig.record.replies.back().what.sequence.value();
    rig.post(now, rig_items(9, {rig_item(now)}));  // held, and refused: rows are missing
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
    rig.post(now, rig_items(12, {rig_item(now)}));
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

}  // namespace
}  // namespace tributary::test
