// A simulated pool beside its full plans: times, bytes, and what the sequencer holds.
#include "deploy/predict/simulate/simulated_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/model/model_files.h"
#include "tests/deploy/predict/simulate/simulated_tier.h"

namespace tributary {
namespace {

AdmitRequest request(std::int64_t prompt, std::int64_t output, SpreadPolicy spread) {
  return {
      .prompt_tokens = prompt, .max_new_tokens = output, .spread = spread, .idempotency_key = {}};
}

TEST(SimulatedPool, BadCommitLengthsAreRefused) {
  for (const int tokens : {0, 17}) {
    SimulatedPoolConfig config = test::small_pool(2);
    config.commit_tokens = tokens;
    EXPECT_TRUE(test::error_of([&] { const SimulatedPool pool(config, 1); })) << tokens;
  }
}

TEST(SimulatedPool, ASequenceAloneTakesWhatPredictStepSays) {
  // Of 550 rows it grows beyond what it selects.
  for (const auto& [spread, topk] : {std::pair(SpreadPolicy::kSingle, 0),
                                     {SpreadPolicy::kAll, 0},
                                     {SpreadPolicy::kSingle, 550},
                                     {SpreadPolicy::kAll, 550},
                                     {SpreadPolicy::kAll, 100}}) {
    SimulatedPoolConfig config = test::small_pool(4);
    config.cost.attention.topk = topk;
    SimulatedPool pool(config, 1);
    // Leaves of 64 tokens: it opens two.
    ASSERT_TRUE(pool.admit(request(500, 140, spread), 7));
    for (int token = 0; token < 140; ++token) {
      const RoundTime time = pool.begin_step();
      EXPECT_EQ(pool.joined(),
                token == 0 ? std::vector<std::int64_t>{7} : std::vector<std::int64_t>{});
      const StepCheck check = pool.check();
      ASSERT_NEAR(time.step_us, check.plan.step_us, 1e-9 * time.step_us) << token;
      ASSERT_EQ(time.bytes, check.plan_bytes) << token;
      const double bytes = check.plan_bytes.node + check.plan_bytes.network;
      if (time.exchange == Exchange::kAllToAll) {
        ASSERT_EQ(bytes, check.least_bytes) << "a narrow exchange sends nothing twice";
      } else {
        ASSERT_GT(bytes, check.least_bytes);
      }
      EXPECT_EQ(time.bytes == LinkBytes{}, spread == SpreadPolicy::kSingle);
      pool.end_step();
      EXPECT_EQ(pool.finished(),
                token == 139 ? std::vector<std::int64_t>{7} : std::vector<std::int64_t>{});
    }
    EXPECT_EQ(pool.sequences(), 0U);
    EXPECT_EQ(pool.free_pages(), pool.total_pages());
  }
}

/// Runs requests that come at random; `each` sees the pool in every step.
template <typename Each>
void run_randomly(SimulatedPool& pool, int steps, std::uint64_t seed, Each each) {
  constexpr SpreadPolicy kPolicies[] = {SpreadPolicy::kAuto, SpreadPolicy::kSingle,
                                        SpreadPolicy::kAll};
  test::Draws draws(seed);
  std::map<std::int64_t, std::int64_t> expected;  // tokens to come, by tag
  std::int64_t tag = 0;
  for (int step = 0; step < steps; ++step) {
    while (draws.uniform() < 0.4 || pool.sequences() == 0) {
      const std::int64_t output = draws.between(1, 150);
      const auto made = request(draws.between(1, 2000), output, kPolicies[tag % 3]);
      if (!pool.admit(made, tag)) break;
      expected[tag++] = output;
    }
    pool.begin_step(0.1 * step);
    each(pool);
    pool.end_step();
    std::vector<std::int64_t> ended;
    for (auto it = expected.begin(); it != expected.end();) {
      if (--it->second > 0) {
        ++it;
        continue;
      }
      ended.push_back(it->first);
      it = expected.erase(it);
    }
    std::vector<std::int64_t> finished = pool.finished();
    std::ranges::sort(finished);
    ASSERT_EQ(finished, ended) << step;
    ASSERT_EQ(pool.sequences(), expected.size());
    if (!pool.sequencer().moves().running().empty()) continue;  // these have pages at both ends
    std::int64_t available = 0;
    for (const PagePool& pages : pool.sequencer().ledger().pools()) available += pages.available();
    ASSERT_EQ(pool.free_pages(), available) << step;
  }
}

/// Tokens of a commit, topk.
class SimulatedPoolSteps : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(SimulatedPoolSteps, TimesAndBytesAreThoseOfFullPlans) {
  SimulatedPoolConfig config = test::small_pool(6, 120);
  config.commit_tokens = GetParam().first;
  config.cost.attention.topk = GetParam().second;
  SimulatedPool pool(config, 1);
  int checked = 0;
  double network = 0;
  run_randomly(pool, 300, 3, [&](const SimulatedPool& p) {
    if (++checked % 5 != 0) return;
    const StepCheck check = p.check();
    ASSERT_NEAR(check.clock.step_us, check.plan.step_us, 1e-9 * check.plan.step_us) << checked;
    ASSERT_EQ(check.clock.bytes, check.plan_bytes) << checked;
    EXPECT_GE(check.mean_roots, 1);
    EXPECT_LE(check.mean_spread, 6);
    network += check.clock.bytes.network;
  });
  EXPECT_GT(network, 0);
}

INSTANTIATE_TEST_SUITE_P(Committed, SimulatedPoolSteps,
                         testing::Values(std::pair(1, 0), std::pair(5, 0), std::pair(16, 0),
                                         std::pair(1, 300), std::pair(16, 300)),
                         [](const auto& info) {
                           return std::to_string(info.param.first) +
                                  (info.param.second > 0 ? "_sparse" : "");
                         });

TEST(SimulatedPool, TimesAndBytesAreThoseOfFullPlansWhileLeavesMove) {
  SimulatedPoolConfig config = test::small_pool(6, 240);
  config.sequencer.move_bytes_per_s = 1e10;
  // Exchanges for nothing: whatever is uneven moves.
  config.cost.costs = {};
  config.cost.costs.attend_byte_ns = 1;
  SimulatedPool pool(config, 1);
  run_randomly(pool, 300, 3, [&](const SimulatedPool& p) {
    const StepCheck check = p.check();
    ASSERT_NEAR(check.clock.step_us, check.plan.step_us, 1e-9 * check.plan.step_us);
    ASSERT_EQ(check.clock.bytes, check.plan_bytes);
  });
  EXPECT_GT(pool.sequencer().moves().totals().completed, 10U);
}

TEST(SimulatedPool, SaysWhatItCouldHold) {
  const SimulatedPool pool(test::small_pool(2, 10), 1);
  EXPECT_TRUE(pool.could_hold(request(600, 40, SpreadPolicy::kSingle)));
  EXPECT_FALSE(pool.could_hold(request(600, 41, SpreadPolicy::kSingle)));
  EXPECT_TRUE(pool.could_hold(request(600, 41, SpreadPolicy::kAll)));
  EXPECT_FALSE(pool.could_hold(request(1280, 1, SpreadPolicy::kAll)));
  EXPECT_TRUE(test::error_of([&] { (void)pool.could_hold(request(-1, 1, SpreadPolicy::kAll)); }));
}

}  // namespace
}  // namespace tributary
