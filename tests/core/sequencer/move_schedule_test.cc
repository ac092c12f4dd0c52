#include "core/sequencer/move_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kRowBytes = 1152;

/// A sequencer whose orders all succeed.
class MoveScheduleTest : public testing::Test {
 protected:
  SequencerConfig config_{.placement = {.workers = 8, .model = default_cost_model(2048, 4)},
                          .pages_per_worker = 20'000,
                          .incarnation = 1};

  /// A sequence whose prompt has arrived.
  static SequenceId admit_ready(Sequencer& sequencer, const AdmitRequest& request) {
    const SequenceId id = sequencer.sequences().admit(request).value();
    sequencer.sequences().prompt_arrived(id);
    return id;
  }

  /// Page copies of the order.
  static std::size_t run_order(Sequencer& sequencer) {
    const std::size_t copies = sequencer.take_order().copies.size();
    sequencer.order_ended(true);
    return copies;
  }

  /// Long ones, each whole on a worker.
  static std::vector<SequenceId> admit_burst(Sequencer& sequencer) {
    std::vector<SequenceId> ids;
    for (int i = 0; i < 4; ++i) {
      ids.push_back(admit_ready(
          sequencer,
          {.prompt_tokens = 400'000, .max_new_tokens = 1000, .spread = SpreadPolicy::kSingle}));
    }
    return ids;
  }

  static std::vector<SequenceId> admit_chats(Sequencer& sequencer) {
    std::mt19937 random(5);
    std::uniform_int_distribution<std::int64_t> prompt(2000, 22'000);
    std::vector<SequenceId> ids;
    for (int i = 0; i < 80; ++i) {
      ids.push_back(
          admit_ready(sequencer, {.prompt_tokens = prompt(random), .max_new_tokens = 1000}));
    }
    return ids;
  }

  /// Busiest worker over the mean.
  static double balance(const Sequencer& sequencer) {
    double most = 0;
    double sum = 0;
    for (const WorkerLoad& load : sequencer.ledger().load().workers()) {
      most = std::max(most, static_cast<double>(load.tokens));
      sum += static_cast<double>(load.tokens);
    }
    return most * static_cast<double>(sequencer.ledger().load().workers().size()) / sum;
  }
};

TEST_F(MoveScheduleTest, ThePoolIsBalancedAgainWhenABurstOfLongSequencesHasLeft) {
  Sequencer sequencer(config_);
  // The burst fills half of the workers, so that what comes during it goes to the others.
  const std::vector<SequenceId> burst = admit_burst(sequencer);
  const std::vector<SequenceId> chats = admit_chats(sequencer);
  for (const SequenceId id : burst) sequencer.sequences().free(id);
  const double before = balance(sequencer);
  ASSERT_GT(before, 1.5);
  const double step_us = sequencer.ledger().predicted_step_us();

  MoveSchedule move_schedule(move_schedule_config(1e12, kRowBytes), sequencer);
  Time now{};
  (void)run_order(sequencer);
  int orders = 0;
  for (int quiet = 0; quiet < 3; ++orders) {
    now += milliseconds(500);
    move_schedule.prepare(now);
    quiet = sequencer.moves().running().empty() ? quiet + 1 : 0;
    (void)run_order(sequencer);
    ASSERT_LT(orders, 1000) << "moves do not end";
  }
  EXPECT_LT(balance(sequencer), before);
  EXPECT_LT(sequencer.ledger().predicted_step_us(), 0.8 * step_us);
  EXPECT_EQ(sequencer.moves().totals().cancelled, 0U);
  EXPECT_GT(sequencer.moves().totals().completed, 0U);

  for (const SequenceId id : chats) sequencer.sequences().free(id);
  for (const PagePool& pool : sequencer.ledger().pools()) EXPECT_EQ(pool.available(), pool.total());
}

TEST_F(MoveScheduleTest, WhatComesDuringAMoveIsPlacedBesideItsOutcome) {
  config_.placement.workers = 3;
  Sequencer sequencer(config_);
  const auto admit = [&](std::int64_t tokens) {
    const SequenceId id = admit_ready(
        sequencer,
        {.prompt_tokens = tokens, .max_new_tokens = 100, .spread = SpreadPolicy::kSingle});
    return std::pair(id, sequencer.ledger().table().at(id).home);
  };
  const auto [long_one, from] = admit(200'000);
  const auto [short_one, beside] = admit(60'000);
  const std::int32_t idle = 3 - from - beside;
  sequencer.moves().begin({.id = long_one, .first_leaf = 0, .end_leaf = 48, .to = idle});
  EXPECT_EQ(admit(10'000).second, beside) << "half of the long one is on its way to the idle one";
  sequencer.moves().cancel(long_one);
  EXPECT_EQ(admit(10'000).second, idle);
}

TEST_F(MoveScheduleTest, AnArrivalEndsAPlanThatWasMadeWithoutIt) {
  Sequencer sequencer(config_);
  const std::vector<SequenceId> burst = admit_burst(sequencer);
  (void)admit_chats(sequencer);
  for (const SequenceId id : burst) sequencer.sequences().free(id);

  // So slow that the plan lasts for many orders.
  MoveSchedule move_schedule(move_schedule_config(1e9, kRowBytes), sequencer);
  Time now{};
  (void)run_order(sequencer);
  const auto next = [&] {
    now += milliseconds(500);
    move_schedule.prepare(now);
    std::vector<LeafMove> moves;
    for (const RunningMove& running : sequencer.moves().running()) moves.push_back(running.move);
    (void)run_order(sequencer);
    return moves;
  };
  for (int order = 0; sequencer.moves().totals().completed < 2; ++order) {
    (void)next();
    ASSERT_LT(order, 200) << "no plan of several moves: " << sequencer.moves().totals().completed;
  }
  const std::vector<LeafMove> before = next();
  std::vector<std::int32_t> filled;
  for (const SequenceId id : admit_burst(sequencer))
    filled.push_back(sequencer.ledger().table().at(id).home);
  (void)run_order(sequencer);
  for (int order = 0; order < 200; ++order) {
    for (const LeafMove& move : next()) {
      const bool is_new = std::ranges::count(before, move) == 0;
      EXPECT_FALSE(is_new && std::ranges::count(filled, move.to) > 0) << order;
    }
  }
}

TEST_F(MoveScheduleTest, CopiesStayBelowTheRate) {
  Sequencer sequencer(config_);
  const SequenceId id =
      admit_ready(sequencer, {.prompt_tokens = 100'000, .max_new_tokens = 10'000});
  const std::vector<Leaf>& leaves = sequencer.ledger().table().at(id).leaves;
  LeafMove move{.id = id, .first_leaf = 0, .end_leaf = 1, .to = (leaves[0].owner + 1) % 8};
  while (leaves.at(static_cast<std::size_t>(move.end_leaf)).owner == leaves[0].owner) {
    ++move.end_leaf;
  }
  const std::int64_t all = std::int64_t{move.end_leaf} * 2048 / 64 * config_.placement.model.layers;
  sequencer.moves().begin(move);
  constexpr double kPageBytes = 64 * kRowBytes;
  MoveSchedule move_schedule(move_schedule_config(100 * kPageBytes, kRowBytes), sequencer);
  Time now{};
  std::int64_t copies = 0;
  for (int i = 0; i < 1000; ++i) {
    now += milliseconds(3);
    move_schedule.prepare(now);
    const auto of_order = static_cast<std::int64_t>(run_order(sequencer));
    EXPECT_LE(of_order, 1) << "10 ms are worth a page";
    copies += of_order;
    if (i > 0 && !sequencer.moves().running().empty()) {
      EXPECT_LE(move_schedule.next_event(), now + milliseconds(11));
    }
  }
  EXPECT_LE(copies, 301);  // in 3 s
  EXPECT_GE(copies, std::min<std::int64_t>(all, 200));
}

TEST_F(MoveScheduleTest, AnOrderHoldsWhatIsCopiedInMilliseconds) {
  Sequencer sequencer(config_);
  for (int i = 0; i < 8; ++i) {
    const SequenceId id = admit_ready(
        sequencer,
        {.prompt_tokens = 200'000, .max_new_tokens = 100, .spread = SpreadPolicy::kSingle});
    const std::int32_t from = sequencer.ledger().table().at(id).leaves[0].owner;
    sequencer.moves().begin({.id = id, .first_leaf = 0, .end_leaf = 97, .to = (from + 1) % 8});
  }
  constexpr double kPageBytes = 64 * kRowBytes;
  MoveSchedule move_schedule(move_schedule_config(1e11, kRowBytes), sequencer);
  Time now{};
  const auto order_at = [&](double bytes_per_us) {
    now += milliseconds(30);
    move_schedule.prepare(now);
    const double bytes = kPageBytes * static_cast<double>(run_order(sequencer));
    move_schedule.order_ended(bytes / bytes_per_us);
    return bytes;
  };
  EXPECT_GT(order_at(1000), 60e6) << "the speed is not known yet";
  for (int i = 0; i < 5; ++i) {
    const double bytes = order_at(1000);
    EXPECT_LE(bytes, 5e6) << "5 ms at 1 GB/s";
    EXPECT_GT(bytes, 5e6 - kPageBytes);
  }
  double slow = 0;
  for (int i = 0; i < 30; ++i) slow = order_at(100);
  EXPECT_LE(slow, 0.6e6);
  EXPECT_GE(slow, 0.4e6);
  for (int i = 0; i < 120; ++i) {  // most have none
    const double bytes = order_at(1);
    if (bytes > 0) slow = bytes;
  }
  EXPECT_EQ(slow, kPageBytes) << "a page at least";
  double fast = 0;
  for (int i = 0; i < 60; ++i) fast = order_at(1000);
  EXPECT_GT(fast, 4e6) << "it learns that copies are fast again";
  EXPECT_FALSE(sequencer.moves().running().empty()) << "more to move than was measured";
}

TEST_F(MoveScheduleTest, CopiesTakeAFifthOfTheTimeAlsoWhereRoundsAreShort) {
  Sequencer sequencer(config_);
  const SequenceId id =
      admit_ready(sequencer, {.prompt_tokens = 200'000, .spread = SpreadPolicy::kSingle});
  const std::int32_t from = sequencer.ledger().table().at(id).home;
  sequencer.moves().begin({.id = id, .first_leaf = 0, .end_leaf = 60, .to = (from + 1) % 8});
  constexpr double kPageBytes = 64 * kRowBytes;
  constexpr double kSpeed = 1000;   // bytes a microsecond
  constexpr double kRoundUs = 300;  // without copies
  constexpr double kOrderUs = 100;  // what copies take for however few
  MoveSchedule move_schedule(move_schedule_config(1e11, kRowBytes), sequencer);
  double now_us = 1e6;
  double copied_us = 0;
  double bytes = 0;
  int with_copies = 0;
  double begin_us = 0;
  for (int i = 0; !sequencer.moves().running().empty(); ++i) {
    move_schedule.prepare(Time(std::chrono::microseconds(static_cast<std::int64_t>(now_us))));
    const double of_order = kPageBytes * static_cast<double>(run_order(sequencer));
    const double copy_us = of_order > 0 ? kOrderUs + of_order / kSpeed : 0;
    move_schedule.order_ended(copy_us);
    now_us += kRoundUs + copy_us;
    ASSERT_LT(i, 20'000) << "it does not end";
    if (i == 0) begin_us = now_us;  // the speed is known from now on
    if (i == 0) continue;
    copied_us += copy_us;
    bytes += of_order;
    with_copies += of_order > 0 ? 1 : 0;
  }
  EXPECT_LT(copied_us, 0.21 * (now_us - begin_us));
  EXPECT_GT(copied_us, 0.15 * (now_us - begin_us));
  EXPECT_LT(with_copies * kOrderUs, 0.05 * copied_us) << "few orders with many copies each";
  EXPECT_GT(bytes, 1e8);
}

TEST_F(MoveScheduleTest, ADrainedWorkerIsEmptiedAndGetsNothingNew) {
  Sequencer sequencer(config_);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 24; ++i) {
    const SpreadPolicy spread = i % 3 == 0   ? SpreadPolicy::kSingle
                                : i % 3 == 1 ? SpreadPolicy::kAll
                                             : SpreadPolicy::kAuto;
    ids.push_back(admit_ready(
        sequencer, {.prompt_tokens = 30'000 + 500 * i, .max_new_tokens = 5000, .spread = spread}));
  }
  constexpr std::int32_t kDrained = 3;
  const PagePool& pool = sequencer.ledger().pools()[kDrained];
  const auto homes = [&] { return sequencer.ledger().load().workers()[kDrained].homes; };
  ASSERT_GT(pool.used(), 10 * 2048 / 64);
  ASSERT_GT(pool.reserved(), 0);
  ASSERT_GT(homes(), 0);
  EXPECT_EQ(code_of([&] { sequencer.moves().drain_worker(8, true); }), ErrorCode::kInvalidArgument);
  sequencer.moves().drain_worker(kDrained, true);
  EXPECT_TRUE(sequencer.ledger().draining(kDrained));

  MoveSchedule move_schedule(move_schedule_config(1e12, kRowBytes), sequencer);
  Time now{};
  (void)run_order(sequencer);
  const auto nobody = [](SequenceId) { return false; };
  const auto all = [](SequenceId) { return true; };
  for (int orders = 0; pool.used() + pool.reserved() > 0; ++orders) {
    now += milliseconds(500);
    move_schedule.prepare(now);
    (void)run_order(sequencer);
    (void)sequencer.give_away(all);
    ASSERT_GT(homes(), 0) << "of sequences with a request at home";
    ASSERT_LT(orders, 2000) << "it is not emptied";
  }
  EXPECT_TRUE(sequencer.give_away(nobody));
  EXPECT_EQ(homes(), 0);
  EXPECT_FALSE(sequencer.give_away(nobody));
  for (int i = 0; i < 16; ++i) {
    const SequenceId id = admit_ready(sequencer, {.prompt_tokens = 20'000, .max_new_tokens = 100});
    for (const Leaf& leaf : sequencer.ledger().table().at(id).leaves)
      EXPECT_NE(leaf.owner, kDrained);
    ids.push_back(id);
  }
  for (const SequenceId id : ids) sequencer.sequences().free(id);
  EXPECT_EQ(pool.used() + pool.reserved(), 0);
  sequencer.moves().drain_worker(kDrained, false);
  EXPECT_EQ(sequencer.ledger().load().workers()[kDrained].available_pages,
            config_.pages_per_worker);
}

TEST_F(MoveScheduleTest, NoMoveGoesToAWorkerThatIsBeingEmptied) {
  Sequencer sequencer(config_);
  const SequenceId id =
      admit_ready(sequencer, {.prompt_tokens = 10'000, .spread = SpreadPolicy::kSingle});
  const std::int32_t to = (sequencer.ledger().table().at(id).home + 1) % 8;
  const LeafMove planned{.id = id, .first_leaf = 0, .end_leaf = 2, .to = to};
  sequencer.moves().drain_worker(to, true);
  EXPECT_EQ(code_of([&] { sequencer.moves().begin(planned); }), ErrorCode::kFailedPrecondition)
      << "of a plan that is older than the drain";
  EXPECT_TRUE(sequencer.moves().running().empty());
  EXPECT_EQ(sequencer.ledger().pools()[static_cast<std::size_t>(to)].used(), 0);
  sequencer.moves().drain_worker(to, false);
  sequencer.moves().begin(planned);
}

TEST_F(MoveScheduleTest, AWorkerIsEmptiedInAPoolAtRestWithoutWaitingForOtherOrders) {
  Sequencer sequencer(config_);
  for (int i = 0; i < 320; ++i) {
    (void)admit_ready(sequencer, {.prompt_tokens = 2048, .spread = SpreadPolicy::kSingle});
  }
  const std::int32_t used = sequencer.ledger().pools()[0].used();
  ASSERT_GE(used, 40 * 2048 / 64) << "more moves than a plan has";
  (void)run_order(sequencer);
  MoveSchedule move_schedule(move_schedule_config(1e12, kRowBytes), sequencer);
  Time now{milliseconds(1000)};
  const Time begin = now;
  sequencer.moves().drain_worker(0, true);
  int orders = 0;
  // As a leader does: orders when the schedule asks for them.
  for (Time due = now; due < Time::max(); due = move_schedule.next_event(), ++orders) {
    ASSERT_LT(orders, 200) << "it asks for orders for ever";
    now = std::max(now + std::chrono::microseconds(100), due);
    move_schedule.prepare(now);
    (void)run_order(sequencer);
  }
  EXPECT_EQ(sequencer.ledger().pools()[0].used(), 0);
  EXPECT_LT(now - begin, milliseconds(500));
}

TEST_F(MoveScheduleTest, OffUnlessItHasARate) {
  Sequencer sequencer(config_);
  (void)admit_ready(sequencer, {.prompt_tokens = 500'000, .max_new_tokens = 10'000});
  MoveSchedule move_schedule(move_schedule_config(0, kRowBytes), sequencer);
  move_schedule.prepare(Time{} + milliseconds(1000));
  EXPECT_TRUE(sequencer.moves().running().empty());
  EXPECT_EQ(move_schedule.next_event(), Time::max());
}

TEST_F(MoveScheduleTest, RefusesWhatIsNoRate) {
  Sequencer sequencer(config_);
  const auto make = [&](double rate, std::size_t row_bytes) {
    return code_of([&] {
      const MoveSchedule move_schedule(move_schedule_config(rate, row_bytes), sequencer);
    });
  };
  EXPECT_EQ(make(1, 1), ErrorCode::kOk);
  EXPECT_EQ(make(-1, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(make(std::numeric_limits<double>::quiet_NaN(), 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(make(1e16, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(make(1, 0), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary
