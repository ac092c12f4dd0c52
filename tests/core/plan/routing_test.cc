// Items, roots, spread and volumes of a batch.

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "core/plan/plan.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/plan/symbolic_pool.h"

namespace tributary {
namespace {

TEST(Exchange, HasNames) {
  for (const Exchange exchange : {Exchange::kAuto, Exchange::kAllGather, Exchange::kAllToAll}) {
    EXPECT_EQ(parse_exchange(exchange_name(exchange)), exchange);
  }
  EXPECT_EQ(exchange_name(Exchange::kAllToAll), "all-to-all");
  EXPECT_EQ(message_of([] { (void)parse_exchange("alltoall"); }),
            "exchange is 'alltoall', expected auto, all-gather or all-to-all");
}

class RoutingTest : public testing::Test {
 protected:
  SymbolicPool pool_{4, 64};
  std::mt19937 random_{1};
  Routing routing_;

  StepItem add(SequenceId id, std::int64_t length, std::int32_t tokens, std::int32_t home,
               const std::vector<std::int32_t>& owner) {
    return pool_.add(id, length, tokens, home, owner, random_);
  }
  void build(const std::vector<StepItem>& batch) {
    build_routing(pool_.table(), batch, pool_.workers(), routing_);
  }
  std::vector<std::int32_t> spread(std::size_t item) {
    const auto workers = routing_.spread_of(routing_.items[item]);
    return {workers.begin(), workers.end()};
  }
};

TEST_F(RoutingTest, SaysWhoTakesPart) {
  // 5 leaves: 0 1 on worker 2, 2 on worker 0, 3 and what exists of 4 on worker 2.
  const StepItem wide = add(1, 64 * 4 + 7, 2, 0, {2, 2, 0, 2, 2, 3});
  const StepItem narrow = add(2, 10, 1, 3, {3});
  build({wide, narrow});
  ASSERT_EQ(routing_.items.size(), 2U);
  EXPECT_EQ(spread(0), (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(spread(1), (std::vector<std::int32_t>{3}));
  EXPECT_TRUE(routing_.exchanged(routing_.items[0]));
  EXPECT_FALSE(routing_.exchanged(routing_.items[1]));
  EXPECT_EQ(routing_.items[0].rows, 64 * 4 + 9);

  const std::vector<std::pair<std::int32_t, TreeNode>> expected{
      {2, {1, 0}}, {0, {0, 2}}, {2, {0, 3}}, {2, {2, 1}}, {3, {0, 0}}};
  std::vector<std::pair<std::int32_t, TreeNode>> got;
  for (const ItemRoot& root : routing_.roots) got.emplace_back(root.worker, root.node);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(routing_.items[0].end_root, 4);
  EXPECT_EQ(routing_.roots[4].item, 1);
  EXPECT_EQ(routing_.worker_rows, (std::vector<std::int64_t>{2 * 64, 0, 2 * (128 + 64 + 9), 11}));
}

TEST_F(RoutingTest, ReplacesTheRoutingBefore) {
  const StepItem a = add(1, 300, 2, 0, {0, 1, 2, 3, 0});
  const StepItem b = add(2, 10, 1, 3, {3});
  build({a, b});
  build({b});
  EXPECT_EQ(routing_.items.size(), 1U);
  EXPECT_EQ(routing_.roots.size(), 1U);
  EXPECT_EQ(routing_.spread.size(), 1U);
  EXPECT_EQ(routing_.worker_rows, (std::vector<std::int64_t>{0, 0, 0, 11}));
}

TEST_F(RoutingTest, RefusesABatchThatDoesNotFitTheTable) {
  const StepItem good = add(1, 60, 4, 0, {0});
  const auto refused = [&](auto member, auto value) {
    StepItem item = good;
    item.*member = value;
    return code_of([&] { build({good, item}); });
  };
  EXPECT_EQ(refused(&StepItem::id, 2U), ErrorCode::kNotFound);
  EXPECT_EQ(refused(&StepItem::epoch, good.epoch + 1), ErrorCode::kStaleEpoch);
  EXPECT_EQ(refused(&StepItem::epoch, good.epoch - 1), ErrorCode::kStaleEpoch);
  EXPECT_EQ(refused(&StepItem::base_length, 61), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(&StepItem::tokens, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(&StepItem::tokens, kMaxStepTokens + 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(&StepItem::tokens, 5), ErrorCode::kInvalidArgument) << "the limit is 64";
  EXPECT_EQ(refused(&StepItem::layer, 9), ErrorCode::kOk) << "a plan is valid for every layer";
}

TEST_F(RoutingTest, RefusesRowsWithoutPages) {
  StepItem item = add(1, 60, 4, 0, {0, 1});
  item.tokens = 5;
  EXPECT_EQ(message_of([&] { build({item}); }), "leaf 1 of sequence 1: 0 pages for 1 rows");
}

TEST_F(RoutingTest, RefusesOwnersThatAreNoWorkers) {
  const StepItem item = add(1, 60, 4, 3, {3});
  EXPECT_EQ(
      message_of([&] { build_routing(pool_.table(), std::vector<StepItem>{item}, 3, routing_); }),
      "sequence 1: leaf 0 is on worker 3, home is worker 3, the pool has 3");
}

TEST_F(RoutingTest, VolumeByHand) {
  // Home 0; roots: worker 1 sends one (leaves 0 1), worker 2 one (leaf 2); 3 tokens.
  const StepItem a = add(1, 130, 3, 0, {1, 1, 2});
  // Home 1, itself leaf 0; worker 2 one root; 2 tokens.
  const StepItem b = add(2, 70, 2, 1, {1, 2});
  const StepItem single = add(3, 500, 5, 3, std::vector<std::int32_t>(8, 3));
  build({a, b, single});

  const ExchangeVolume to_all = exchange_volume(routing_, 4, Exchange::kAllToAll);
  EXPECT_EQ(to_all.token_records, 3 + 3 + 2);
  EXPECT_EQ(to_all.state_records, 3 + 3 + 2);

  const ExchangeVolume gather = exchange_volume(routing_, 4, Exchange::kAllGather);
  EXPECT_EQ(gather.token_records, (3 + 2) * 3);
  EXPECT_EQ(gather.state_records, (3 + 3 + 2) * 3);
}

}  // namespace
}  // namespace tributary
