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

TEST(LeaderTest, AnIdlePoolGetsAnOrderEverySecond) {
  LeaderRig rig(rig_at_once());
  rig.run_until(rig.begin + milliseconds(3'500));
  EXPECT_EQ(rig.order_times(),
            (std::vector{rig.begin + seconds(1), rig.begin + seconds(2), rig.begin + seconds(3),
                         rig.begin + milliseconds(3'500)}));
  for (const auto& order : rig.orders) EXPECT_EQ(order.what.stop, &order == &rig.orders.back());
}

TEST(LeaderTest, AnAdmissionIsOrderedAtOnceAndAnsweredWhenTheOrderHasEnded) {
  LeaderRig rig(rig_at_once());
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
  LeaderRig rig(rig_at_once());
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
  LeaderRig rig(rig_at_once());
  std::vector<SequenceInfo> s;
  rig.admit_at(rig.begin, rig_id(1), 0, 100);
  rig.admit_at(rig.begin + milliseconds(1), rig_id(2), 0, 100);
  const Time first = rig.begin + milliseconds(10);
  rig.clock.at(first, [&] {
    for (const auto& reply : rig.record.replies) s.push_back(reply.what.sequence.value());
    for (std::size_t i = 0; i < 2; ++i) rig.post(s.at(i), rig_items(i, {rig_item(s[i])}));
  });
  const Time second = rig.begin + milliseconds(20);
  rig.clock.at(second, [&] { rig.post(s.at(0), rig_items(7, {rig_item(s[0], 1)})); });
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
  LeaderRig rig(rig_at_once());
  rig.admit_at(rig.begin, rig_id(1), 0, 100);
  const auto step = [&] { rig.post(rig.admitted(), rig_items(1, {rig_item(rig.admitted())})); };
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
  LeaderRig rig(rig_at_once());
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
  LeaderRig rig(rig_at_once());
  rig.outcome = [](const Order&) {
    RoundReport report;
    report.status = {ErrorCode::kDeadlineExceeded, "worker 1 is missing"};
    return report;
  };
  EXPECT_EQ(message_of([&] { rig.leader.run(); }), "worker 1 is missing");
  EXPECT_EQ(rig.clock.now(), rig.begin + seconds(1));
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
  LeaderConfig config = rig_at_once();
  config.options.canary_interval_ms = 250;
  LeaderRig rig(config);
  rig.admit_at(rig.begin, rig_id(1), 0, 100);
  for (int i = 1; i <= 10; ++i) {
    rig.clock.at(rig.begin + i * milliseconds(100),
                 [&] { rig.post(rig.admitted(), rig_items(1, {rig_item(rig.admitted())})); });
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
  LeaderRig rig(rig_at_once());
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
  LeaderRig rig(rig_at_once());
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
    rig.post(a, rig_items(1, {rig_item(a)}));
    rig.post(b, rig_items(2, {rig_item(b)}));
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
    rig.clock.at(come + seconds(7), [&] { rig.post(a, rig_items(9, {rig_item(a, 1)}, 10)); });
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
