// Every rank's plan, run symbolically against the canonical tree.

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/plan/plan.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/plan/symbolic_pool.h"

namespace tributary {
namespace {

constexpr int kTrials = 25;  // per number of workers, leaf size and exchange

class Draw {
 public:
  explicit Draw(std::uint32_t seed) : random(seed) {}
  /// low .. high.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  }
  /// Any length, but preferably at or just before a border of a page or a leaf.
  std::int64_t length(int leaf_tokens) {
    const std::int64_t leaves = between(0, 3) == 0 ? between(0, 20) : between(0, 4);
    switch (between(0, 3)) {
      case 0:
        return leaves * leaf_tokens;
      case 1:
        return leaves * leaf_tokens + between(leaf_tokens - kMaxStepTokens, leaf_tokens - 1);
      case 2:
        return leaves * leaf_tokens + between(kPageTokens - 3, kPageTokens + 1);
      default:
        return between(0, (leaves + 1) * leaf_tokens);
    }
  }
  std::vector<std::int32_t> owners(std::int64_t leaves, int workers) {
    const auto worker = [&] { return static_cast<std::int32_t>(between(0, workers - 1)); };
    const std::int64_t style = between(0, 3);
    const std::int64_t mean_run = style == 1 ? 1 : between(2, 8);
    std::vector<std::int32_t> owner{worker()};
    while (static_cast<std::int64_t>(owner.size()) < leaves) {
      const auto l = static_cast<std::int64_t>(owner.size());
      if (style == 0) {
        owner.push_back(owner[0]);  // single
      } else if (style == 2) {
        owner.push_back(static_cast<std::int32_t>(l % workers));
      } else {
        owner.push_back(between(1, mean_run) == 1 ? worker() : owner.back());
      }
    }
    return owner;
  }
  std::mt19937 random;
};

struct PlanCase {
  int workers;
  int leaf_tokens;
  Exchange exchange;
};

class RankPlanRound : public testing::TestWithParam<PlanCase> {};

TEST_P(RankPlanRound, ComesToTheCanonicalStates) {
  const auto [workers, leaf_tokens, exchange] = GetParam();
  Draw draw(static_cast<std::uint32_t>(workers * 1000 + leaf_tokens));
  for (int trial = 0; trial < kTrials; ++trial) {
    SymbolicPool pool(workers, leaf_tokens);
    std::vector<StepItem> batch;
    const std::int64_t sequences = draw.between(1, 7);
    for (std::int64_t i = 0; i < sequences; ++i) {
      const std::int64_t length = draw.length(leaf_tokens);
      const auto tokens = static_cast<std::int32_t>(draw.between(1, kMaxStepTokens));
      const auto owner =
          draw.owners(ceil_div(length + tokens, leaf_tokens) + draw.between(0, 2), workers);
      // One in three homes is anywhere, also outside the spread.
      const auto home = draw.between(0, 2) == 0
                            ? static_cast<std::int32_t>(draw.between(0, workers - 1))
                            : owner[0];
      batch.push_back(
          pool.add(static_cast<SequenceId>(i + 1), length, tokens, home, owner, draw.random));
    }
    std::shuffle(batch.begin(), batch.end(), draw.random);
    SymbolicRound round(pool, batch, exchange);
    round.run(draw.random);
    if (HasFatalFailure()) FAIL() << "trial " << trial;
  }
}

std::vector<PlanCase> plan_cases() {
  std::vector<PlanCase> cases;
  for (int workers = 1; workers <= 9; ++workers) {
    for (const int leaf_tokens : {64, 128, 256}) {
      for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
        cases.push_back({workers, leaf_tokens, exchange});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(, RankPlanRound, testing::ValuesIn(plan_cases()), [](const auto& info) {
  return fmt::format("Workers{}Leaf{}{}", info.param.workers, info.param.leaf_tokens,
                     info.param.exchange == Exchange::kAllGather ? "AllGather" : "AllToAll");
});

class RankPlanCase : public testing::TestWithParam<Exchange> {
 protected:
  std::mt19937 random_{1};
};

TEST_P(RankPlanCase, AllAtHomeMovesNothing) {
  SymbolicPool pool(3, 64);
  const std::vector<StepItem> batch{
      pool.add(1, 1000, 3, 0, std::vector<std::int32_t>(16, 0), random_),
      pool.add(2, 63, 16, 2, {2, 2}, random_), pool.add(3, 0, 1, 1, {1}, random_)};
  SymbolicRound round(pool, batch, GetParam());
  round.run(random_);
  for (const RankPlan& plan : round.plans()) {
    EXPECT_FALSE(plan.tokens_travel);
    EXPECT_FALSE(plan.states_travel);
    EXPECT_EQ(plan.received_tokens, 0);
    EXPECT_EQ(plan.sent_states, 0);
    EXPECT_EQ(plan.received_states, 0);
    EXPECT_TRUE(plan.token_send_index.empty());
  }
  EXPECT_EQ(round.plans()[0].local_states, 16 * 3);
  EXPECT_EQ(round.plans()[1].local_states, 0) << "a leaf that is the whole tree goes straight out";
}

TEST_P(RankPlanCase, AStepOverALeafBorderReachesBothOwners) {
  SymbolicPool pool(2, 64);
  const std::vector<StepItem> batch{pool.add(1, 62, 4, 0, {0, 1}, random_)};
  SymbolicRound round(pool, batch, GetParam());
  round.run(random_);
  EXPECT_EQ(round.plans()[0].appends.size(), 2U);
  EXPECT_EQ(round.plans()[1].appends.size(), 2U);
  EXPECT_EQ(round.plans()[1].tasks.size(), 1U);
  EXPECT_EQ(round.plans()[1].tasks[0].rows, 2);
}

TEST_P(RankPlanCase, AHomeWithoutLeavesGetsTheResult) {
  SymbolicPool pool(3, 64);
  const std::vector<StepItem> batch{pool.add(1, 100, 2, 2, {1, 1}, random_)};
  SymbolicRound round(pool, batch, GetParam());
  round.run(random_);
  EXPECT_TRUE(round.plans()[2].tasks.empty());
  ASSERT_EQ(round.plans()[2].homed.size(), 1U);
  EXPECT_EQ(round.plans()[1].sent_states, 2) << "one root of two tokens";
}

TEST_P(RankPlanCase, AnEmptyBatchIsAnEmptyPlan) {
  SymbolicPool pool(2, 64);
  SymbolicRound round(pool, {}, GetParam());
  round.run(random_);
  for (const RankPlan& plan : round.plans()) {
    EXPECT_EQ(plan.total_states(), 0);
    EXPECT_EQ(plan.total_tokens(), 0);
    EXPECT_TRUE(plan.homed.empty());
    EXPECT_FALSE(plan.tokens_travel);
  }
}

INSTANTIATE_TEST_SUITE_P(, RankPlanCase, testing::Values(Exchange::kAllGather, Exchange::kAllToAll),
                         [](const auto& info) {
                           return info.param == Exchange::kAllGather ? "AllGather" : "AllToAll";
                         });

TEST(PlanBuilder, WantsAChosenExchange) {
  PlanBuilder builder(1, 0, 64);
  RankPlan plan;
  EXPECT_EQ(code_of([&] { builder.build(Routing{}, Exchange::kAuto, plan); }),
            ErrorCode::kInvalidArgument);
}

TEST(SymbolicState, TellsStatesApart) {
  // The oracle itself distinguishes what must differ.
  EXPECT_NE(symbolic_merge(1, symbolic_merge(2, 3)), symbolic_merge(symbolic_merge(1, 2), 3));
  EXPECT_NE(symbolic_merge(1, 2), symbolic_merge(2, 1));
  EXPECT_EQ(symbolic_merge(5, 0), 5U);
  EXPECT_NE(symbolic_state(1, 200, 64), symbolic_state(1, 200, 128));
  EXPECT_NE(symbolic_state(1, 200, 64), symbolic_state(2, 200, 64));
  EXPECT_NE(symbolic_state(1, 200, 64), symbolic_state(1, 201, 64));
  EXPECT_EQ(symbolic_state(1, 63, 64), symbolic_state(1, 63, 128));
}

}  // namespace
}  // namespace tributary
