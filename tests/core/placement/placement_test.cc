#include "core/placement/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/plan/merge_tree.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

constexpr std::int64_t kAmple = 1 << 30;
constexpr std::int64_t kLeaf = 2048;
constexpr std::int64_t kLeafPages = kLeaf / kPageTokens;
constexpr SpreadPolicy kAll[] = {SpreadPolicy::kAuto, SpreadPolicy::kSingle, SpreadPolicy::kAll};

PlacementConfig config_of(int workers, int leaf_tokens = static_cast<int>(kLeaf)) {
  return {.workers = workers, .model = default_cost_model(leaf_tokens)};
}

/// A sequence on each worker.
PoolLoad loads_of(const std::vector<std::int64_t>& tokens) {
  const auto workers = static_cast<int>(tokens.size());
  PoolLoad load = Placement(config_of(workers)).empty_load(kAmple);
  for (std::int32_t w = 0; w < workers; ++w) {
    const std::int64_t held = tokens[static_cast<std::size_t>(w)];
    load.add(std::vector<LeafRun>{{w, 0, (held + kLeaf - 1) / kLeaf}}, w, held);
  }
  return load;
}

std::int64_t up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

std::int64_t distinct(std::span<const std::int32_t> owner) {
  return static_cast<std::int64_t>(std::set<std::int32_t>(owner.begin(), owner.end()).size());
}

std::int64_t root_count(std::span<const std::int32_t> owner) {
  std::vector<TreeNode> roots;
  for (std::size_t begin = 0, end = 0; begin < owner.size(); begin = end) {
    while (end < owner.size() && owner[end] == owner[begin]) ++end;
    append_subtree_roots(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end),
                         static_cast<std::int64_t>(owner.size()), roots);
  }
  return static_cast<std::int64_t>(roots.size());
}

TEST(SpreadPolicy, NamesRoundTrip) {
  for (const SpreadPolicy policy : kAll) {
    EXPECT_EQ(parse_spread_policy(spread_policy_name(policy)), policy);
  }
  EXPECT_EQ(code_of([] { (void)parse_spread_policy("Auto"); }), ErrorCode::kInvalidArgument);
}

TEST(Placement, RefusesBadConfigurations) {
  const auto refused = [](auto change) {
    PlacementConfig config = config_of(2);
    change(config);
    return code_of([&] { Placement placement(config); }) == ErrorCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](PlacementConfig&) {}));
  EXPECT_TRUE(refused([](PlacementConfig& c) { c.workers = 0; }));
  for (const int leaf : {0, -64, 32, 65, 192, std::numeric_limits<int>::min()}) {
    EXPECT_TRUE(refused([&](PlacementConfig& c) { c.model.leaf_tokens = leaf; })) << leaf;
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {-1.0, nan, std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(refused([&](PlacementConfig& c) { c.model.costs.attend_us = value; })) << value;
    EXPECT_TRUE(refused([&](PlacementConfig& c) { c.model.costs.step_us = value; })) << value;
  }
  EXPECT_TRUE(refused([](PlacementConfig& c) { c.model.layers = 0; }));
  EXPECT_TRUE(refused([](PlacementConfig& c) { c.model.workers_per_node = 0; }));
}

TEST(Placement, RefusesBadArguments) {
  const Placement placement(config_of(2));
  const auto loads = loads_of({0, 0});
  const auto code = [&](std::int64_t prompt, std::int64_t limit, const PoolLoad& load) {
    return code_of([&] { (void)placement.place(prompt, limit, SpreadPolicy::kAuto, load); });
  };
  EXPECT_EQ(code(1, 1, loads), ErrorCode::kOk);
  EXPECT_EQ(code(0, 1, loads), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(2, 1, loads), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(1, std::numeric_limits<std::int64_t>::max(), loads), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(1, 1, loads_of({0})), ErrorCode::kInvalidArgument);
  const auto leaf_code = [&](std::int32_t reserved, std::int32_t home, std::size_t workers) {
    const std::vector<std::int64_t> spread(workers, 0);
    return code_of(
        [&] { (void)placement.place_leaf(reserved, 1, home, spread, SpreadPolicy::kAuto, loads); });
  };
  EXPECT_EQ(leaf_code(1, 0, 2), ErrorCode::kOk);
  EXPECT_EQ(leaf_code(2, 0, 2), ErrorCode::kInvalidArgument);
  EXPECT_EQ(leaf_code(0, -1, 2), ErrorCode::kInvalidArgument);
  EXPECT_EQ(leaf_code(0, 0, 3), ErrorCode::kInvalidArgument);
}

// Leaves are equal but for the last, so whether an assignment exists can be counted: the full
// leaves need as many slots, the last one a slot or the rest of a worker's pages.
bool assignment_exists(std::int64_t limit, int leaf_tokens, SpreadPolicy policy,
                       std::span<const WorkerLoad> loads) {
  const std::int64_t leaf_pages = leaf_tokens / kPageTokens;
  const std::int64_t pages = up(limit, kPageTokens);
  std::int64_t slots = 0;
  bool rest_fits = false;
  bool whole_fits = false;
  for (const WorkerLoad& load : loads) {
    slots += load.available_pages / leaf_pages;
    rest_fits |= load.available_pages % leaf_pages >= pages % leaf_pages;
    whole_fits |= load.available_pages >= pages;
  }
  if (policy == SpreadPolicy::kSingle) return whole_fits;
  const std::int64_t full = pages / leaf_pages;
  return slots > full || (slots == full && (pages % leaf_pages == 0 || rest_fits));
}

TEST(Placement, EveryLeafHasOneOwnerWithPagesWhereverThatIsPossible) {
  std::mt19937 random(2);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random()) % bound;
  };
  int placed = 0;
  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    const int workers = 1 + static_cast<int>(below(9));
    const int leaf_tokens = kPageTokens << below(4);
    PlacementConfig config = config_of(workers, leaf_tokens);
    config.model.costs.all_to_all_byte_ns *= static_cast<double>(below(40)) / 1000;
    config.model.costs.all_to_all_message_us = 0;
    config.model.workers_per_node = 1 + static_cast<int>(below(9));
    const Placement placement(config);
    PoolLoad load = placement.empty_load(0);
    for (std::int32_t w = 0; w < workers; ++w) {
      const std::int64_t held = 1 + below(20000);
      load.add(std::vector<LeafRun>{{w, 0, up(held, leaf_tokens)}}, w, held);
      load.set_available_pages(w, below(100));
    }
    const std::span<const WorkerLoad> loads = load.workers();
    const std::int64_t prompt = 1 + below(12000);
    const std::int64_t limit = prompt + below(2) * below(6000);
    for (const SpreadPolicy policy : kAll) {
      const auto assignment = placement.place(prompt, limit, policy, load);
      ASSERT_EQ(assignment.has_value(), assignment_exists(limit, leaf_tokens, policy, loads))
          << "operation " << i << " policy " << spread_policy_name(policy);
      ++(assignment ? placed : refused);
      if (!assignment) continue;

      const auto& owner = assignment->leaf_owner;
      ASSERT_EQ(static_cast<std::int64_t>(owner.size()), up(limit, leaf_tokens));
      std::vector<std::int64_t> pages(loads.size(), 0);
      for (std::size_t leaf = 0; leaf < owner.size(); ++leaf) {
        ASSERT_GE(owner[leaf], 0);
        ASSERT_LT(owner[leaf], workers);
        const std::int64_t begin = static_cast<std::int64_t>(leaf) * leaf_tokens;
        pages[static_cast<std::size_t>(owner[leaf])] +=
            up(std::min<std::int64_t>(limit - begin, leaf_tokens), kPageTokens);
      }
      for (std::size_t w = 0; w < pages.size(); ++w) {
        ASSERT_LE(pages[w], loads[w].available_pages);
      }
      const auto prompt_owner =
          std::span(owner).first(static_cast<std::size_t>(up(prompt, leaf_tokens)));
      ASSERT_NE(std::find(prompt_owner.begin(), prompt_owner.end(), assignment->home),
                prompt_owner.end());

      const auto again = placement.place(prompt, limit, policy, load);
      ASSERT_EQ(again->leaf_owner, owner);
      ASSERT_EQ(again->home, assignment->home);
    }
  }
  EXPECT_GT(placed, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Placement, SingleTakesTheLeastLoadedWorkerThatFits) {
  const Placement placement(config_of(4));
  auto loads = loads_of({500, 100, 200, 100});
  auto owner = [&] { return placement.place(5 * kLeaf, 6 * kLeaf, SpreadPolicy::kSingle, loads); };
  EXPECT_EQ(owner()->leaf_owner, std::vector<std::int32_t>(6, 1));
  loads.set_available_pages(1, 6 * kLeafPages - 1);
  EXPECT_EQ(owner()->leaf_owner, std::vector<std::int32_t>(6, 3));
  EXPECT_EQ(owner()->home, 3);
  loads.set_available_pages(3, 0);
  EXPECT_EQ(owner()->leaf_owner, std::vector<std::int32_t>(6, 2));
  for (std::int32_t w = 0; w < 4; ++w) loads.set_available_pages(w, 6 * kLeafPages - 1);
  EXPECT_FALSE(owner().has_value());
}

TEST(Placement, AllCoversTheWorkersWithAlignedRuns) {
  const Placement placement(config_of(8));
  const auto loads = loads_of({8, 7, 6, 5, 4, 3, 2, 1});
  for (std::int64_t leaves = 1; leaves <= 70; ++leaves) {
    const auto assignment =
        placement.place(leaves * kLeaf, leaves * kLeaf, SpreadPolicy::kAll, loads);
    ASSERT_TRUE(assignment);
    EXPECT_EQ(distinct(assignment->leaf_owner), std::min<std::int64_t>(leaves, 8)) << leaves;
    // Runs are at least leaves / 16 long, so at most 16 of them; each is one subtree.
    EXPECT_LE(root_count(assignment->leaf_owner), 16) << leaves;
  }
  // Least loaded first.
  const auto three = placement.place(3 * kLeaf, 3 * kLeaf, SpreadPolicy::kAll, loads);
  EXPECT_EQ(three->leaf_owner, (std::vector<std::int32_t>{7, 6, 5}));
  const auto many = placement.place(64 * kLeaf, 64 * kLeaf, SpreadPolicy::kAll, loads);
  EXPECT_EQ(root_count(many->leaf_owner), 8);
}

TEST(Placement, RunsAreCutWhereTheyDoNotFit) {
  // 16 leaves, runs of 8; worker 0 has room for 3 leaves only.
  const Placement placement(config_of(2));
  auto loads = loads_of({0, 0});
  loads.set_available_pages(0, 3 * kLeafPages);
  for (const SpreadPolicy policy : {SpreadPolicy::kAuto, SpreadPolicy::kAll}) {
    const auto assignment = placement.place(16 * kLeaf, 16 * kLeaf, policy, loads);
    ASSERT_TRUE(assignment);
    EXPECT_LE(std::count(assignment->leaf_owner.begin(), assignment->leaf_owner.end(), 0), 3);
  }
  loads.set_available_pages(1, 13 * kLeafPages - 1);
  for (const SpreadPolicy policy : {SpreadPolicy::kAuto, SpreadPolicy::kAll}) {
    EXPECT_FALSE(placement.place(16 * kLeaf, 16 * kLeaf, policy, loads).has_value());
    // One page fewer and it fits exactly.
    EXPECT_TRUE(placement.place(16 * kLeaf - kPageTokens, 16 * kLeaf - kPageTokens, policy, loads));
  }
}

TEST(Placement, AutoKeepsASequenceTogetherWhereThatCostsNothing) {
  // Small beside what the workers hold, and worker 2 is behind: one root, no exchange.
  const Placement placement(config_of(4));
  const auto loads = loads_of({400000, 400000, 380000, 400000});
  const auto assignment = placement.place(9000, 9100, SpreadPolicy::kAuto, loads);
  EXPECT_EQ(assignment->leaf_owner, std::vector<std::int32_t>(5, 2));
  EXPECT_EQ(assignment->home, 2);
}

TEST(Placement, AutoWeighsExchangesAgainstAttention) {
  PlacementConfig config = config_of(8);
  const PoolLoad load = loads_of(std::vector<std::int64_t>(8, 2048));
  std::vector<std::int64_t> spreads;
  for (const double factor : {0.0, 0.01, 1.0, 100.0}) {
    config.model.costs = find_built_in_costs("cpu").costs;
    MachineCosts& c = config.model.costs;
    for (double* cost : {&c.all_to_all_byte_ns, &c.all_gather_byte_ns, &c.all_to_all_message_us,
                         &c.all_gather_message_us, &c.merge_us}) {
      *cost *= factor;
    }
    const auto assignment =
        Placement(config).place(8 * kLeaf, 8 * kLeaf, SpreadPolicy::kAuto, load);
    spreads.push_back(distinct(assignment->leaf_owner));
  }
  EXPECT_TRUE(std::is_sorted(spreads.rbegin(), spreads.rend()));
  EXPECT_EQ(spreads.front(), 8);  // free exchanges: perfectly even
  EXPECT_EQ(spreads.back(), 1);   // priceless ones: whole
}

TEST(Placement, AutoShipsFewRootsOfALongSequence) {
  // 62 leaves cover 8 workers; in single leaves they would be close to 62 roots.
  const Placement placement(config_of(8));
  const auto loads = loads_of({96000, 95000, 97000, 94000, 98000, 95500, 96500, 96000});
  const auto assignment = placement.place(126000, 126500, SpreadPolicy::kAuto, loads);
  EXPECT_EQ(distinct(assignment->leaf_owner), 8);
  EXPECT_LE(root_count(assignment->leaf_owner), 20);
  std::vector<std::int64_t> tokens;
  for (std::size_t w = 0; w < loads.workers().size(); ++w) {
    const auto leaves = std::count(assignment->leaf_owner.begin(), assignment->leaf_owner.end(),
                                   static_cast<std::int32_t>(w));
    tokens.push_back(loads.workers()[w].tokens + leaves * kLeaf);
  }
  const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
  EXPECT_LE(*high - *low, 4 * kLeaf);
}

TEST(Placement, ASpreadStaysInsideANodeWhereItCan) {
  PlacementConfig config = config_of(8);
  config.model.costs = find_built_in_costs("h200").costs;
  config.model.workers_per_node = 4;
  // The second node is the emptier one.
  const auto loads = loads_of({4096, 4096, 4096, 4096, 2048, 2048, 2048, 2048});
  const auto assignment = Placement(config).place(1 << 18, 1 << 18, SpreadPolicy::kAuto, loads);
  EXPECT_EQ(std::set<std::int32_t>(assignment->leaf_owner.begin(), assignment->leaf_owner.end()),
            (std::set<std::int32_t>{4, 5, 6, 7}));
}

TEST(Placement, HomeIsTheOwnerThatReceivesLeast) {
  const Placement placement(config_of(3));
  auto loads = loads_of({2048, 2048, 2048});
  const auto home = [&] {
    const auto a = placement.place(3 * kLeaf, 3 * kLeaf, SpreadPolicy::kAll, loads);
    EXPECT_EQ(distinct(a->leaf_owner), 3);
    return a->home;
  };
  EXPECT_EQ(home(), 2) << "all alike: where the newest leaf is";
  // Worker 0 receives three roots, worker 1 two.
  loads.add(std::vector<LeafRun>{{1, 0, 1}, {2, 1, 2}, {1, 2, 3}}, 0, 3 * kLeaf);
  loads.add(std::vector<LeafRun>{{0, 0, 1}, {2, 1, 2}}, 1, 2 * kLeaf);
  EXPECT_EQ(home(), 2);
  loads.add(std::vector<LeafRun>{{0, 0, 1}, {1, 1, 2}, {0, 2, 3}, {1, 3, 4}, {0, 4, 5}}, 2,
            5 * kLeaf);
  EXPECT_EQ(home(), 1);
}

TEST(Placement, HomeIsWhereMostLies) {
  // Six leaves on two equal workers: runs of 2, so one worker gets four leaves and fewer roots
  // travel when it is the home.
  const Placement placement(config_of(2));
  const auto assignment =
      placement.place(6 * kLeaf, 6 * kLeaf, SpreadPolicy::kAll, loads_of({10, 0}));
  const auto& owner = assignment->leaf_owner;
  EXPECT_EQ(std::count(owner.begin(), owner.end(), assignment->home), 4);
}

TEST(Placement, NewLeafStaysAtTheHomeUntilThatMakesRoundsLonger) {
  PlacementConfig config = config_of(4);
  config.model.costs.all_to_all_message_us = 1;  // a root is worth some 500 tokens
  const Placement placement(config);
  auto loads = loads_of({50000, 50000, 48000, 49000});
  const std::vector<std::int64_t> spread = {2048, 2048, 0, 0};
  const auto leaf = [&](std::int32_t reserved, SpreadPolicy policy) {
    return placement.place_leaf(reserved, kLeafPages, 1, spread, policy, loads);
  };
  loads.grow(0, 10000, 10000);
  EXPECT_EQ(leaf(3, SpreadPolicy::kAuto), 1);  // the home: another worker is the busiest
  loads.grow(1, 20000, 20000);
  EXPECT_EQ(leaf(3, SpreadPolicy::kAuto), 0);  // elsewhere in the spread: no further query
  loads.grow(0, 10000, 10000);
  EXPECT_EQ(leaf(3, SpreadPolicy::kAuto), 2);  // the least loaded
  loads.set_available_pages(2, kLeafPages - 1);
  EXPECT_EQ(leaf(0, SpreadPolicy::kAuto), 3);
  loads.set_available_pages(3, 0);
  EXPECT_EQ(leaf(3, SpreadPolicy::kAuto), 3);  // its own pages are promised
  EXPECT_EQ(leaf(0, SpreadPolicy::kSingle), 0);
  loads.set_available_pages(2, kLeafPages);
  EXPECT_EQ(leaf(0, SpreadPolicy::kAll), 2);
}

}  // namespace
}  // namespace tributary
