#include "core/placement/page_cuts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/cost/built_in_costs.h"
#include "core/placement/packing.h"
#include "core/placement/placement.h"
#include "core/sequencer/sequencer.h"

namespace tributary {
namespace {

constexpr std::int64_t kCutLeaf = 2048;
constexpr std::int64_t kWorkerPages = 24'000;  // 100 GiB of DeepSeek-V3

TEST(PageCuts, AnEmptyPoolHoldsWhatCanBePlacedInIt) {
  std::mt19937 random(3);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random()) % bound;
  };
  int fits = 0;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const int workers = 1 + static_cast<int>(below(5));
    const int leaf_tokens = 64 << below(4);
    const std::int64_t pages = 1 + below(40);
    const std::int64_t limit = 1 + below(12'000);
    const Placement placement({.workers = workers, .model = default_cost_model(leaf_tokens)});
    for (const SpreadPolicy policy :
         {SpreadPolicy::kAuto, SpreadPolicy::kSingle, SpreadPolicy::kAll}) {
      const bool placed =
          placement.place(1 + below(limit), limit, policy, placement.empty_load(pages)).has_value();
      ASSERT_EQ(fits_empty_pool(limit, policy, workers, pages, leaf_tokens), placed)
          << limit << " tokens, " << workers << " workers of " << pages << " pages, leaves of "
          << leaf_tokens << ", " << spread_policy_name(policy);
      ++(placed ? fits : refused);
    }
  }
  EXPECT_GT(fits, 1000);
  EXPECT_GT(refused, 1000);
}

/// Eight H200s with a hundred chats of 12,000 tokens each.
class FullPool : public testing::Test {
 protected:
  FullPool() {
    for (std::int32_t w = 0; w < 8; ++w) {
      for (int i = 0; i < 100; ++i) load_.add(std::vector<LeafRun>{{w, 0, 6}}, w, 12'000);
      load_.set_available_pages(w, 150);
    }
  }

  static PlacementConfig config() {
    PlacementConfig config{.workers = 8, .model = default_cost_model(kCutLeaf)};
    config.model.costs = find_built_in_costs("h200").costs;
    config.model.layers = 61;
    config.model.workers_per_node = 8;
    return config;
  }
  std::optional<Assignment> place(std::int64_t prompt, PageCut cut = PageCut::kIfItPays) const {
    return placement_.place(prompt, prompt + 100, SpreadPolicy::kAuto, load_, cut);
  }
  static std::size_t spread(const Assignment& assignment) {
    return std::set(assignment.leaf_owner.begin(), assignment.leaf_owner.end()).size();
  }

  Placement placement_{config()};
  PoolLoad load_ = placement_.empty_load(kWorkerPages);
};

TEST_F(FullPool, AChatThatFitsNowhereWholeWaitsForAWholePlace) {
  EXPECT_FALSE(place(12'000));
  const auto overdue = place(12'000, PageCut::kAlways);
  ASSERT_TRUE(overdue);
  EXPECT_GT(spread(*overdue), 1U);
  load_.set_available_pages(5, 200);
  const auto whole = place(12'000);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->leaf_owner, std::vector<std::int32_t>(6, 5));
  EXPECT_EQ(whole->home, 5);
}

TEST_F(FullPool, GrowthIsKeptBesideWhatStaysWhole) {
  // Worker 2 has most pages, but not those of its growth as well.
  load_.set_available_pages(2, 190);
  load_.set_available_pages(6, 230);
  const auto assignment =
      placement_.place(12'000, 12'000 + 2'500, SpreadPolicy::kAuto, load_, PageCut::kIfItPays);
  ASSERT_TRUE(assignment);
  EXPECT_EQ(assignment->leaf_owner, std::vector<std::int32_t>(8, 6));
  load_.set_available_pages(6, 190);
  EXPECT_FALSE(placement_.place(12'000, 12'000 + 2'500, SpreadPolicy::kAuto, load_))
      << "a leaf that opens elsewhere is a cut";
}

TEST_F(FullPool, WhatIsMuchOfAWorkerDoesNotWait) {
  for (std::int32_t w = 0; w < 8; ++w) load_.set_available_pages(w, 11'000);
  const auto half = place(800'000);
  ASSERT_TRUE(half) << "half of the pool would stand still meanwhile";
  EXPECT_GT(spread(*half), 1U);
  const auto never = place(kWorkerPages * 64 + 1);
  ASSERT_TRUE(never) << "no worker will ever hold it";
}

TEST(MaxStep, ALongSequenceIsCutWhereTheBoundAsksForItAndACutKeepsIt) {
  PlacementConfig config{.workers = 8, .model = default_cost_model(kCutLeaf)};
  config.model.costs = find_built_in_costs("h200").costs;
  config.model.layers = 61;
  config.model.workers_per_node = 8;
  // Chats on all workers: what the long sequence is above them is gone soon, so it stays whole.
  const auto placed = [&](double max_step_us) {
    const Placement placement(config, max_step_us);
    PoolLoad load = placement.empty_load(kWorkerPages);
    for (std::int32_t w = 0; w < 8; ++w) {
      for (int i = 0; i < 30; ++i) load.add(std::vector<LeafRun>{{w, 0, 6}}, w, 12'000);
    }
    const auto found = placement.place(120'000, 121'000, SpreadPolicy::kAuto, load);
    load.add(runs_of(std::span(found->leaf_owner).first(59)), found->home, 120'000);
    return std::pair(runs_of(found->leaf_owner).size(), load.step_us(placement.prices()));
  };
  const auto [whole_runs, whole_us] = placed(0);
  ASSERT_EQ(whole_runs, 1U);
  EXPECT_EQ(placed(whole_us + 1).first, 1U) << "the bound is kept";
  const auto [runs, us] = placed(whole_us - 1);
  EXPECT_GT(runs, 1U);
  EXPECT_LT(us, whole_us);
  EXPECT_EQ(placed(whole_us / 10).first, 1U) << "nothing keeps it";
  EXPECT_THROW(Placement(config, -1), Error);
}

TEST(PageWaits, TheLargestThatWasRefusedIsOvertakenByOneWorkersPagesAtMost) {
  PageWaits waits(40);
  EXPECT_EQ(waits.may_cut(8), PageCut::kIfItPays);
  waits.refused(8);
  waits.refused(5);
  for (int i = 0; i < 5; ++i) waits.admitted(7);
  waits.admitted(4);
  EXPECT_EQ(waits.may_cut(8), PageCut::kIfItPays);
  waits.admitted(1);
  EXPECT_EQ(waits.may_cut(7), PageCut::kIfItPays) << "only what waits";
  EXPECT_EQ(waits.may_cut(8), PageCut::kAlways);
  waits.admitted(8);
  EXPECT_EQ(waits.may_cut(8), PageCut::kIfItPays);
}

TEST(PageWaits, ASequenceThatShorterOnesOvertakeIsCutInTheEnd) {
  Sequencer sequencer({.placement = {.workers = 2, .model = default_cost_model(64)},
                       .pages_per_worker = 40,
                       .incarnation = 1});
  const auto admit = [&](std::int64_t tokens, SpreadPolicy spread = SpreadPolicy::kAuto) {
    return sequencer.sequences().admit(
        {.prompt_tokens = tokens, .max_new_tokens = 0, .spread = spread});
  };
  // Pairs of pages; six of a worker stay free.
  std::vector<SequenceId> pairs;
  for (int i = 0; i < 34; ++i) pairs.push_back(admit(128, SpreadPolicy::kSingle).value());
  constexpr std::int64_t kLong = 8 * 64;
  int overtaken = 0;
  std::optional<SequenceId> taken;
  while (!(taken = admit(kLong))) {
    ASSERT_LT(overtaken, 40) << "it starves";
    sequencer.sequences().free(pairs.front());
    pairs.erase(pairs.begin());
    pairs.push_back(admit(128, SpreadPolicy::kSingle).value());
    ++overtaken;
  }
  EXPECT_EQ(overtaken, 20) << "40 pages";
  std::set<std::int32_t> owners;
  for (const Leaf& leaf : sequencer.ledger().table().at(*taken).leaves) owners.insert(leaf.owner);
  EXPECT_EQ(owners.size(), 2U);
}

}  // namespace
}  // namespace tributary
