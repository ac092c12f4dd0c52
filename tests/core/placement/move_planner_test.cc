#include "core/placement/move_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/cache/leaves.h"
#include "core/cost/built_in_costs.h"

namespace tributary {
namespace {

constexpr int kLeaf = 64;  // one page

/// Sequences placed by hand in a pool of one node; attention takes 1 ns a byte, all else nothing.
class MovePlannerTest : public testing::Test {
 protected:
  MovePlannerTest() {
    model_.costs = {};
    model_.costs.attend_byte_ns = 1;
    model_.workers_per_node = 64;
  }

  /// Full leaves on `owners`; so many tokens may still come.
  void add(std::int32_t home, const std::vector<std::int32_t>& owners,
           std::int64_t tokens_left = 2000) {
    Sequence s;
    s.id = sequences_.size() + 1;
    s.epoch = 1;
    s.home = home;
    s.length = static_cast<std::int64_t>(owners.size()) * kLeaf;
    s.limit_tokens = s.length + tokens_left;
    for (const std::int32_t owner : owners) s.leaves.push_back({owner, {0}});
    s.leaves.resize(static_cast<std::size_t>(s.limit_tokens / kLeaf) + 1, Leaf{home, {}});
    sequences_.push_back(std::move(s));
  }

  [[nodiscard]] PoolLoad load(int workers, std::int64_t pages = 100) const {
    PoolLoad load(workers, model_, pages);
    for (const Sequence& s : sequences_) {
      std::vector<LeafRun> runs;
      for_each_owner_run(s, (s.length + kLeaf - 1) / kLeaf,
                         [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
                           runs.push_back({owner, begin, end});
                         });
      load.add(runs, s.home, s.length);
    }
    return load;
  }
  [[nodiscard]] double step_us(int workers) const {
    return load(workers).step_us(RoundPrices(model_, workers));
  }

  [[nodiscard]] MovePlan plan(const PoolLoad& load) const {
    std::vector<const Sequence*> movable;
    for (const Sequence& s : sequences_) movable.push_back(&s);
    const auto workers = static_cast<int>(load.workers().size());
    return plan_moves(config_, movable, load, RoundPrices(model_, workers));
  }

  void move(const MovePlan& plan) {
    for (const LeafMove& move : plan) {
      Sequence& s = sequences_.at(move.id - 1);
      for (std::int32_t l = move.first_leaf; l < move.end_leaf; ++l) {
        s.leaves.at(static_cast<std::size_t>(l)).owner = move.to;
      }
    }
  }

  CostModelConfig model_ = default_cost_model(kLeaf);
  MovePlannerConfig config_;
  std::vector<Sequence> sequences_;
};

TEST_F(MovePlannerTest, HalvesWhatIsOnOneOfTwoWorkers) {
  add(0, {0, 0, 0, 0, 0, 0, 0, 0});
  const MovePlan first = plan(load(2));
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].end_leaf - first[0].first_leaf, 4);
  EXPECT_EQ(first[0].to, 1);
  move(first);
  EXPECT_TRUE(plan(load(2)).empty());
}

TEST_F(MovePlannerTest, WorkersThatAreEquallyBusyAreRelievedTogether) {
  for (const std::int32_t w : {0, 1, 2}) add(w, std::vector<std::int32_t>(8, w));
  const MovePlan all = plan(load(6));
  EXPECT_EQ(all.size(), 3U) << "fewer do not make a step shorter";
  move(all);
  const PoolLoad after = load(6);
  for (const WorkerLoad& worker : after.workers()) EXPECT_EQ(worker.tokens, 4 * kLeaf);
}

TEST_F(MovePlannerTest, AnExchangeEndsWithTheLastSequenceThatIsJoined) {
  for (std::int32_t i = 0; i < 4; ++i) {
    add(i, {0, 1, 2, 3, 0, 1, 2, 3});
    std::rotate(sequences_.back().leaves.begin(), sequences_.back().leaves.begin() + i,
                sequences_.back().leaves.begin() + 8);
  }
  model_.costs.all_to_all_message_us = model_.costs.all_gather_message_us = 10;
  move(plan(load(4)));
  for (const Sequence& s : sequences_) {
    for (const Leaf& leaf : s.leaves) EXPECT_EQ(leaf.owner, s.home);
  }
  EXPECT_FALSE(load(4).exchange().travels());
  EXPECT_TRUE(plan(load(4)).empty());
}

TEST_F(MovePlannerTest, StaysWhereTheSequenceEndsBeforeTheCopyIsPaidFor) {
  add(0, {0, 0, 0, 0, 0, 0, 0, 0}, 2000);
  model_.costs.all_to_all_byte_ns = model_.costs.all_gather_byte_ns = 1e-3;
  EXPECT_FALSE(plan(load(2)).empty());
  // A step reads four leaves less where four are copied, less what the exchange takes: with equal
  // prices of a byte copied and read, fewer steps than the hysteresis never pay.
  sequences_[0].limit_tokens = sequences_[0].length + 2;
  model_.costs.attend_byte_ns = 1e-3;
  EXPECT_TRUE(plan(load(2)).empty());
}

TEST_F(MovePlannerTest, TakesNoMoreThanThereIsRoomFor) {
  add(0, {0, 0, 0, 0, 0, 0, 0, 0});
  PoolLoad some = load(3);
  some.set_available_pages(1, 4);
  some.set_available_pages(2, 0);
  for (const LeafMove& m : plan(some)) EXPECT_EQ(m.to, 1);
  some.set_available_pages(1, 0);
  EXPECT_TRUE(plan(some).empty());
}

TEST_F(MovePlannerTest, AnEmptySequenceHasNothingToMove) {
  add(0, {0, 0, 0, 0, 0, 0, 0, 0});
  const PoolLoad uneven = load(2);
  sequences_.clear();  // the long one may not be moved
  add(1, {});
  EXPECT_TRUE(plan(uneven).empty());
}

TEST_F(MovePlannerTest, LeavesTheNewestLeafAlone) {
  add(0, {0, 0, 0});
  sequences_[0].length -= 1;
  const MovePlan found = plan(load(2));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_LE(found[0].end_leaf, 2);
  sequences_[0].length = kLeaf - 1;
  EXPECT_TRUE(plan(load(2)).empty());
}

TEST_F(MovePlannerTest, HasNothingToDoOnOneWorkerOrWithoutSequences) {
  EXPECT_TRUE(plan(load(4)).empty());
  add(0, {0, 0, 0, 0});
  EXPECT_TRUE(plan(load(1)).empty());
}

// By loads that are counted anew: what a plan was tried on gives what it leads to.
TEST_F(MovePlannerTest, EveryPlanMakesAStepShorterAndPlansComeToAnEnd) {
  constexpr int kWorkers = 8;
  std::mt19937 random(3);
  const auto below = [&](int bound) {
    return static_cast<std::int32_t>(random() % static_cast<unsigned>(bound));
  };
  int plans = 0;
  for (int pool = 0; pool < 30; ++pool) {
    sequences_.clear();
    model_ = default_cost_model(kLeaf);
    model_.costs = find_built_in_costs("h200").costs;
    model_.workers_per_node = pool % 2 == 0 ? 8 : 4;
    for (int i = 2 + below(20); i > 0; --i) {
      std::vector<std::int32_t> owners;
      const int runs = 1 + below(3);
      for (int r = 0; r < runs; ++r) {
        owners.resize(owners.size() + 1 + static_cast<std::size_t>(below(400)), below(kWorkers));
      }
      add(owners[static_cast<std::size_t>(below(static_cast<int>(owners.size())))], owners);
    }
    int rounds = 0;
    for (double before = step_us(kWorkers);; ++rounds) {
      const MovePlan next = plan(load(kWorkers, 1 << 20));
      if (next.empty()) break;
      move(next);
      const double after = step_us(kWorkers);
      ASSERT_LT(after, before * (1 - config_.least_gain) * (1 + 1e-9));
      before = after;
      ASSERT_LT(rounds, 100);
    }
    plans += rounds;
  }
  EXPECT_GT(plans, 30);
}

}  // namespace
}  // namespace tributary
