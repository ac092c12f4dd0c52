#include "core/sequencer/losses.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "core/sequencer/members.h"
#include "core/sequencer/sequencer.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

constexpr int kLeaf = 128;  // two pages

class LossesTest : public testing::Test {
 protected:
  explicit LossesTest(int workers = 3, std::int32_t pages = 40)
      : sequencer_({.placement = {.workers = workers, .model = default_cost_model(kLeaf)},
                    .pages_per_worker = pages}) {}

  SequenceId admit(std::int64_t prompt, std::int64_t more, SpreadPolicy spread,
                   const Prefix& prefix = {}) {
    const auto id = sequencer_.sequences().admit(
        {.prompt_tokens = prompt, .max_new_tokens = more, .spread = spread, .prefix = prefix});
    sequencer_.sequences().prompt_arrived(id.value());
    return *id;
  }
  const Sequence& at(SequenceId id) { return sequencer_.ledger().table().at(id); }
  const PoolLedger::Running& running(SequenceId id) { return sequencer_.ledger().running().at(id); }
  Order order() {
    Order order = sequencer_.take_order();
    sequencer_.order_ended(true);
    sequencer_.sequences().release_closed(order.round);
    return order;
  }
  void open(SequenceId id, std::int32_t tokens) {
    const StepItem item = next_item(at(id), tokens);
    sequencer_.steps().open(std::span(&item, 1));
    sequencer_.steps().order_round(std::span(&item, 1));
  }

  Sequencer sequencer_;
  Losses& losses_ = sequencer_.losses();
};

TEST_F(LossesTest, ThoseThatHadNothingThereGoOn) {
  const SequenceId id = admit(300, 20, SpreadPolicy::kSingle);
  open(id, 3);
  (void)order();
  const Sequence before = at(id);
  const Loss loss = losses_.lose_worker((before.home + 1) % 3);
  EXPECT_TRUE(loss.epochs.empty() && loss.steps.empty() && loss.homes.empty());
  EXPECT_EQ(sequencer_.steps().open_tokens(id), 3);
  EXPECT_TRUE(order().ops.empty());
  EXPECT_TRUE(losses_.give_room().empty());
}

TEST_F(LossesTest, ALeafIsNamedAndItsRowsComeAgainElsewhere) {
  const SequenceId id = admit(300, 200, SpreadPolicy::kAll);
  const Sequence before = at(id);
  const std::int32_t lost = before.leaves[1].owner;
  ASSERT_NE(lost, before.leaves[0].owner);
  open(id, 1);
  const Loss loss = losses_.lose_worker(lost);
  EXPECT_EQ(loss.epochs, std::vector{id});
  EXPECT_EQ(loss.steps, std::vector{id}) << "it reads the rows";
  EXPECT_EQ(at(id).epoch, 2U);
  EXPECT_EQ(running(id).lost, std::vector{1});
  EXPECT_TRUE(running(id).arriving);
  EXPECT_EQ(code_of([&] { open(id, 1); }), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of([&] { sequencer_.sequences().truncate(id, 10); }),
            ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(sequencer_.sequences().raise_limit(id, 600));
  EXPECT_FALSE(sequencer_.sequences().admit({.prompt_tokens = 1}).has_value())
      << "others have room after those that wait";
  sequencer_.sequences().prompt_arrived(id);
  EXPECT_TRUE(running(id).arriving) << "they have no pages yet";

  EXPECT_EQ(losses_.give_room(), std::vector{id});
  EXPECT_NE(at(id).leaves[1].owner, lost);
  EXPECT_EQ(at(id).leaves[1].pages.size(), 2U);
  EXPECT_EQ(at(id).leaves[0].pages, before.leaves[0].pages);
  EXPECT_EQ(running(id).lost, std::vector{1}) << "until they are here";
  sequencer_.sequences().prompt_arrived(id);
  EXPECT_TRUE(running(id).lost.empty());
  open(id, 1);
  (void)order();
  sequencer_.steps().commit(id, 1);
  EXPECT_EQ(at(id).length, 301);
  EXPECT_TRUE(sequencer_.sequences().admit({.prompt_tokens = 1}).has_value());
}

TEST_F(LossesTest, WhatIsReservedMovesWithoutANewEpoch) {
  const SequenceId id = admit(100, 300, SpreadPolicy::kAll);
  ASSERT_GT(at(id).leaves.size(), 2U);
  const std::int32_t home = at(id).home;
  std::int32_t lost = kNoWorker;
  for (const Leaf& leaf : at(id).leaves) {
    if (leaf.owner != at(id).leaves[0].owner && leaf.owner != home) lost = leaf.owner;
  }
  ASSERT_NE(lost, kNoWorker);
  open(id, 1);
  const Loss loss = losses_.lose_worker(lost);
  EXPECT_TRUE(loss.epochs.empty() && loss.steps.empty());
  EXPECT_EQ(at(id).epoch, 1U);
  EXPECT_EQ(sequencer_.ledger().waiting().size(), 1U);
  EXPECT_EQ(losses_.give_room(), std::vector{id});
  EXPECT_TRUE(sequencer_.ledger().waiting().empty());
  EXPECT_EQ(sequencer_.steps().open_tokens(id), 1);
}

TEST_F(LossesTest, AHomeIsGivenAwayAndItsRowsStay) {
  const SequenceId id = admit(100, 20, SpreadPolicy::kSingle);
  // Its rows move away, its home stays.
  const std::int32_t home = at(id).home;
  sequencer_.moves().begin({id, 0, 1, (home + 1) % 3});
  while (!sequencer_.moves().running().empty()) {
    (void)sequencer_.moves().order_copies(100);
    (void)order();
  }
  ASSERT_EQ(at(id).home, home);
  open(id, 1);
  const Loss loss = losses_.lose_worker(home);
  EXPECT_EQ(loss.homes, std::vector{id});
  EXPECT_EQ(loss.steps, std::vector{id}) << "its states were there";
  EXPECT_EQ(loss.epochs, std::vector{id}) << "so that its client hears of it";
  EXPECT_TRUE(running(id).lost.empty());
  EXPECT_EQ(at(id).home, (home + 1) % 3) << "beside its rows";
  EXPECT_EQ(at(id).epoch, 2U);
}

TEST_F(LossesTest, BlocksGetTheirNamesWhenTheirRowsAreBack) {
  Prefix prefix{.block_tokens = kLeaf, .key_bytes = 16, .keys = std::string(16, 'a')};
  prefix.keys += std::string(16, 'b');
  const SequenceId id = admit(300, 20, SpreadPolicy::kSingle, prefix);
  const SequenceId reader = admit(300, 20, SpreadPolicy::kSingle, prefix);
  ASSERT_EQ(at(reader).present_tokens, 2 * kLeaf);
  EXPECT_EQ(losses_.lose_worker(at(id).leaves[0].owner).epochs, (std::vector{id, reader}));
  EXPECT_EQ(sequencer_.ledger().pages().blocks().size(), 0U);
  EXPECT_EQ(losses_.give_room(), (std::vector{id, reader}));
  sequencer_.sequences().prompt_arrived(id);
  EXPECT_EQ(sequencer_.ledger().pages().blocks().size(), 2U);
  const SequenceId third = admit(300, 20, SpreadPolicy::kSingle, prefix);
  EXPECT_EQ(at(third).present_tokens, 2 * kLeaf);
  sequencer_.sequences().prompt_arrived(reader);
  for (const SequenceId one : {id, reader, third}) sequencer_.sequences().free(one);
  for (const PagePool& pool : sequencer_.ledger().pools()) EXPECT_EQ(pool.used(), 0);
}

TEST_F(LossesTest, AClosedSequenceHasNothingThereAnyMore) {
  const SequenceId id = admit(300, 20, SpreadPolicy::kAll);
  sequencer_.sequences().close(id);
  (void)losses_.lose_worker(1);
  losses_.take_worker(1);
  EXPECT_EQ(sequencer_.sequences().closing(), 1U);
  (void)order();
  EXPECT_EQ(sequencer_.sequences().closing(), 0U);
  for (const PagePool& pool : sequencer_.ledger().pools()) {
    EXPECT_EQ(pool.free(), pool.total());
    EXPECT_EQ(pool.reserved(), 0);
  }
}

TEST_F(LossesTest, WhoTakesThePlaceOfAWorkerThatWasEmptiedIsNotEmptied) {
  sequencer_.moves().drain_worker(1, true);
  (void)losses_.lose_worker(1);
  losses_.take_worker(1);
  EXPECT_FALSE(sequencer_.ledger().draining(1));
}

TEST_F(LossesTest, RefusesWorkersThatItCannotLoseOrTake) {
  const auto lose = [&](std::int32_t w) { return code_of([&] { (void)losses_.lose_worker(w); }); };
  const auto take = [&](std::int32_t w) { return code_of([&] { losses_.take_worker(w); }); };
  for (const std::int32_t w : {-1, 3}) {
    EXPECT_EQ(lose(w), ErrorCode::kInvalidArgument);
    EXPECT_EQ(take(w), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(take(1), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(lose(1), ErrorCode::kOk);
  EXPECT_EQ(lose(1), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(lose(2), ErrorCode::kOk);
  EXPECT_EQ(lose(0), ErrorCode::kFailedPrecondition) << "the last one";
  EXPECT_EQ(code_of([&] { sequencer_.moves().drain_worker(1, false); }),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(take(1), ErrorCode::kOk);
  EXPECT_EQ(members(sequencer_.ledger()), 2);
}

TEST_F(LossesTest, WhereAllOthersAreBeingEmptiedTheyTakeWhatIsLeft) {
  const SequenceId id = admit(300, 20, SpreadPolicy::kAll);
  for (const std::int32_t w : {0, 1}) sequencer_.moves().drain_worker(w, true);
  (void)losses_.lose_worker(2);
  EXPECT_FALSE(sequencer_.ledger().draining(0));
  EXPECT_FALSE(sequencer_.ledger().draining(1));
  EXPECT_EQ(losses_.give_room(), std::vector{id});
}

/// A newest leaf of 116 rows has moved in an order that failed: its last page waits for its rows,
/// while an open step of 14 tokens is to go on.
class LossesOfPendingCopies : public LossesTest {
 protected:
  LossesOfPendingCopies() {
    id_ = admit(116, 50, SpreadPolicy::kSingle);
    open(id_, 14);
    (void)order();
    from_ = at(id_).leaves[0].owner;
    sequencer_.moves().begin({id_, 0, 1, (from_ + 1) % 3});
    (void)sequencer_.moves().order_copies(1);
    (void)order();
    (void)sequencer_.moves().order_copies(100);
    (void)sequencer_.take_order();
    sequencer_.order_ended(false);
  }
  [[nodiscard]] bool waits(const Leaf& leaf, std::size_t page) {
    return sequencer_.copies().is_copied_to(leaf.owner, leaf.pages.at(page));
  }

  SequenceId id_ = 0;
  std::int32_t from_ = 0;
};

TEST_F(LossesOfPendingCopies, RowsThatWaitForALostWorkerAreLost) {
  ASSERT_NE(at(id_).leaves[0].owner, from_);
  ASSERT_TRUE(waits(at(id_).leaves[0], 1));
  EXPECT_EQ(losses_.lose_worker(from_).epochs, std::vector{id_});
  EXPECT_EQ(running(id_).lost, std::vector{0});
  EXPECT_EQ(sequencer_.copies().size(), 0U);
}

TEST_F(LossesOfPendingCopies, ATruncationLeavesOthersTheRowsThatTheyWaitFor) {
  sequencer_.steps().commit(id_, 14);
  const auto fork = sequencer_.sequences().admit(
      {.prompt_tokens = 130, .max_new_tokens = 20, .parent = {id_, 1, 130}});
  ASSERT_TRUE(fork.has_value());
  ASSERT_TRUE(waits(at(*fork).leaves[0], 1));
  sequencer_.sequences().truncate(id_, 10);
  EXPECT_TRUE(waits(at(*fork).leaves[0], 1));
}

/// A full pool of two: every sequence keeps half its rows.
class FullPoolTest : public LossesTest {
 protected:
  FullPoolTest() : LossesTest(2, 40) {}
};

TEST_F(FullPoolTest, AllCompleteOnTheWorkerThatIsLeftTheOldestFirst) {
  std::vector<SequenceId> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(admit(8 * 64 - 1, 1, SpreadPolicy::kAll));
  EXPECT_EQ(sequencer_.ledger().pools()[0].available(), 0);
  EXPECT_EQ(sequencer_.ledger().pools()[1].available(), 0);
  EXPECT_EQ(losses_.lose_worker(1).epochs, ids);
  std::vector<SequenceId> completed;
  int gave_up = 0;
  for (int round = 0; round < 100 && !ids.empty(); ++round) {
    for (const SequenceId id : losses_.give_room()) {
      if (sequencer_.ledger().waiting().contains(id)) {
        ++gave_up;
        continue;
      }
      sequencer_.sequences().prompt_arrived(id);
      completed.push_back(id);
    }
    (void)order();
    // One ends per round.
    for (const SequenceId id : ids) {
      if (running(id).arriving) continue;
      open(id, 1);
      (void)order();
      sequencer_.steps().commit(id, 1);
      sequencer_.sequences().free(id);
      std::erase(ids, id);
      break;
    }
  }
  EXPECT_TRUE(ids.empty());
  EXPECT_TRUE(std::ranges::is_sorted(completed));
  EXPECT_EQ(completed.size(), 10U);
  EXPECT_EQ(gave_up, 1) << "its half is what the oldest lacks";
  EXPECT_EQ(sequencer_.ledger().pools()[0].free(), 40);
}

TEST_F(FullPoolTest, WhoLostOnlyWhatWasPromisedGoesOnUntilItNeedsThat) {
  const SequenceId id = admit(kLeaf - 4, 100, SpreadPolicy::kAll);
  const std::int32_t keeps = at(id).leaves[0].owner;
  ASSERT_EQ(at(id).leaves[1].owner, 1 - keeps);
  SequenceId beside = admit(64 * 38 - 1, 1, SpreadPolicy::kSingle);  // all that is left
  SequenceId lost = admit(64 * 38 - 1, 1, SpreadPolicy::kSingle);
  if (at(beside).leaves[0].owner != keeps) std::swap(beside, lost);
  EXPECT_EQ(losses_.lose_worker(1 - keeps).epochs, std::vector{lost});
  EXPECT_TRUE(losses_.give_room().empty());
  for (int token = 0; token < 4; ++token) {
    open(id, 1);
    (void)order();
    sequencer_.steps().commit(id, 1);
  }
  EXPECT_EQ(at(id).length, kLeaf);
  EXPECT_EQ(code_of([&] { open(id, 1); }), ErrorCode::kUnavailable);
  sequencer_.sequences().free(beside);
  (void)order();
  EXPECT_EQ(losses_.give_room().front(), id) << "the oldest";
  open(id, 1);
}

TEST_F(FullPoolTest, OneThatIsTooLargeForTheRestWaitsAndLetsOthersRun) {
  const SequenceId large = admit(60 * 64 - 1, 1, SpreadPolicy::kAll);
  const SequenceId small = admit(18 * 64 - 1, 1, SpreadPolicy::kAll);
  (void)losses_.lose_worker(1);
  EXPECT_EQ(losses_.give_room(), std::vector{large}) << "it gives up what it has";
  (void)order();
  EXPECT_EQ(losses_.give_room(), std::vector{small});
  EXPECT_TRUE(sequencer_.ledger().waiting().contains(large));
  EXPECT_EQ(code_of([&] {
              (void)sequencer_.sequences().admit(
                  {.prompt_tokens = 60 * 64, .max_new_tokens = 1, .spread = SpreadPolicy::kAll});
            }),
            ErrorCode::kTooLarge);
  sequencer_.sequences().prompt_arrived(small);
  EXPECT_TRUE(sequencer_.sequences().admit({.prompt_tokens = 1}).has_value())
      << "it waits for another worker, and not for room";
  losses_.take_worker(1);
  EXPECT_EQ(losses_.give_room(), std::vector{large});
  EXPECT_TRUE(sequencer_.ledger().waiting().empty());
}

}  // namespace
}  // namespace tributary
