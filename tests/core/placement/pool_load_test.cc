// Loads that are kept as sequences come and go predict the same as the plan of a round of them.
#include "core/placement/pool_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/cache/sequence_table.h"
#include "core/cost/built_in_costs.h"
#include "core/cost/cost_model.h"
#include "core/plan/plan.h"

namespace tributary {
namespace {

constexpr int kLoadLeaf = 64;

CostModelConfig model_of(int workers_per_node) {
  CostModelConfig model = default_cost_model(kLoadLeaf);
  // Each constant counts, with a value that no other combination makes up for.
  double next = 1;
  for_each_cost(model.costs, [&](const char*, double& cost) { cost = (next *= 1.37); });
  model.costs.attend_overlap = 0.75;
  model.costs.wait_late_most_us = 1e9;
  model.projection = {.weight_bytes = 1000, .token_gflop = 0.01};
  model.layers = 3;
  model.workers_per_node = workers_per_node;
  return model;
}

struct Placed {
  std::vector<LeafRun> runs;
  std::int32_t home = 0;
  std::int64_t tokens = 1;
};

/// Runs of random lengths on random workers; the home may be another one.
Placed random_sequence(std::mt19937& random, int workers) {
  const auto below = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
  Placed s;
  s.tokens = 1 + below(40 * kLoadLeaf);
  const std::int64_t leaves = ceil_div(s.tokens, kLoadLeaf);
  const bool whole = below(3) == 0;
  for (std::int64_t begin = 0; begin < leaves;) {
    const std::int64_t end = whole ? leaves : std::min(leaves, begin + 1 + below(12));
    const auto worker = static_cast<std::int32_t>(below(static_cast<std::uint32_t>(workers)));
    if (!s.runs.empty() && s.runs.back().worker == worker) {
      s.runs.back().end = end;
    } else {
      s.runs.push_back({worker, begin, end});
    }
    begin = end;
  }
  s.home = below(4) == 0
               ? static_cast<std::int32_t>(below(static_cast<std::uint32_t>(workers)))
               : s.runs[static_cast<std::size_t>(below(static_cast<std::uint32_t>(s.runs.size())))]
                     .worker;
  return s;
}

/// The same as a sequence whose last token is the step's new one.
Sequence sequence_of(const Placed& placed, SequenceId id) {
  Sequence s;
  s.id = id;
  s.epoch = 1;
  s.home = placed.home;
  s.prompt_tokens = s.length = placed.tokens - 1;
  s.limit_tokens = placed.tokens;
  for (const LeafRun& run : placed.runs) {
    for (std::int64_t leaf = run.begin; leaf < run.end; ++leaf) {
      const auto pages = leaf * kLoadLeaf < s.length ? std::size_t{1} : std::size_t{0};
      s.leaves.push_back({run.worker, std::vector<std::int32_t>(pages, 0)});
    }
  }
  return s;
}

TEST(PoolLoad, PredictsWhatThePlanPredicts) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const int workers = 1 + static_cast<int>(random() % 9);
    CostModelConfig model = model_of(1 + static_cast<int>(random() % 5));
    model.attention.topk = trial % 2 == 0 ? 0 : 100 + trial;
    const RoundPrices prices(model, workers);
    PoolLoad load(workers, model, 0);
    SequenceTable table(kLoadLeaf);
    std::vector<StepItem> batch;
    for (SequenceId id = 1; id <= 1 + random() % 12; ++id) {
      const Placed placed = random_sequence(random, workers);
      load.add(placed.runs, placed.home, placed.tokens);
      Sequence sequence = sequence_of(placed, id);
      const auto last = static_cast<std::int32_t>(sequence.leaves.size()) - 1;
      const std::int32_t owner = sequence.leaves.back().owner;
      const bool opens = sequence.leaves.back().pages.empty();
      table.apply(AdmitOp{std::move(sequence)});
      if (opens) table.apply(ExtendOp{id, last, owner, {0}});
      batch.push_back(next_item(table.at(id), 1));
      // A sequence that came and went leaves nothing.
      const Placed other = random_sequence(random, workers);
      load.add(other.runs, other.home, other.tokens);
      load.remove(other.runs, other.home, other.tokens);
    }
    Routing routing;
    build_routing(table, batch, workers, routing);
    double shorter = 1e300;
    for (const Exchange exchange : {Exchange::kAllToAll, Exchange::kAllGather}) {
      const StepPrediction plan = predict_step(model, routing, workers, exchange);
      const RoundTimes round = load.round(exchange, prices);
      const WorkerTimes& slowest = round.slowest;
      const auto phase = [&](Phase p) { return plan.phase_us[static_cast<std::size_t>(p)] / 3; };
      // Equal sums in another order of additions: a few roundings.
      const auto near = [](double value) { return 1e-12 * (1 + value); };
      EXPECT_NEAR(slowest.project_us, phase(Phase::kProject), near(slowest.project_us));
      EXPECT_NEAR(slowest.queries_us, phase(Phase::kQueryExchange), near(slowest.queries_us));
      EXPECT_NEAR(slowest.attend_us, phase(Phase::kAttend), near(slowest.attend_us));
      EXPECT_NEAR(slowest.states_us, phase(Phase::kPartialExchange), near(slowest.states_us));
      EXPECT_NEAR(slowest.combine_us, phase(Phase::kCombine), near(slowest.combine_us));
      const double step = round.step_us(model, load.sequences());
      EXPECT_NEAR(step, plan.step_us, near(step)) << "trial " << trial;
      shorter = std::min(shorter, step);
    }
    EXPECT_EQ(load.step_us(prices), shorter);
    // The pool's own choice is the shorter one of the two.
    const StepPrediction chosen =
        predict_step(model, routing, workers, choose_exchange(model, routing, workers));
    EXPECT_NEAR(chosen.step_us, shorter, 1e-12 * shorter);
  }
}

TEST(PoolLoad, IsEmptyWhenAllHaveGone) {
  std::mt19937 random(3);
  const CostModelConfig model = model_of(2);
  const RoundPrices prices(model, 6);
  PoolLoad load(6, model, 0);
  const double empty = load.step_us(prices);
  std::vector<Placed> all;
  for (int i = 0; i < 50; ++i) {
    all.push_back(random_sequence(random, 6));
    load.add(all.back().runs, all.back().home, all.back().tokens);
  }
  EXPECT_GT(load.step_us(prices), empty);
  EXPECT_TRUE(load.exchange().travels());
  std::ranges::shuffle(all, random);
  for (const Placed& s : all) load.remove(s.runs, s.home, s.tokens);
  EXPECT_EQ(load.step_us(prices), empty);
  EXPECT_FALSE(load.exchange().travels());
  EXPECT_EQ(load.sequences(), 0);
}

TEST(PoolLoad, RefusesAPoolOfNobody) {
  EXPECT_THROW(PoolLoad(0, model_of(1), 0), Error);
  EXPECT_THROW(PoolLoad(1, model_of(0), 0), Error);
}

TEST(BuiltInCosts, AreFoundByNameAndListed) {
  for (const BuiltInCosts& machine : built_in_costs()) {
    EXPECT_EQ(&find_built_in_costs(machine.name), &machine);
  }
  try {
    (void)find_built_in_costs("h300");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
    EXPECT_NE(std::string(e.what()).find("h100, h200, cpu"), std::string::npos) << e.what();
  }
}

// DeepSeek-V3 on an H200: FlashMLA's 660 TFLOP/s bind, reading runs below them; a subtree root is
// worth some 1,400 tokens on NVLink.
TEST(BuiltInCosts, GiveTheKnownTimesOfAnH200) {
  CostModelConfig model = default_cost_model();
  model.costs = find_built_in_costs("h200").costs;
  const RoundPrices prices(model, 8);
  const auto tokens_us = [&](std::int64_t tokens) {
    return prices.attend_us({.leaves = 1, .rows = tokens, .row_tokens = tokens}) -
           prices.config().costs.attend_us;
  };
  EXPECT_NEAR(tokens_us(1'000'000), 422, 1);
  const Inbound root{.near = 1, .far = 0, .near_messages = 0, .far_messages = 0};
  EXPECT_NEAR(prices.states_us(root, Exchange::kAllToAll), 0.584, 0.001);
}

}  // namespace
}  // namespace tributary
