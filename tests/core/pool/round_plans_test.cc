// When a rank's plans are made anew, and what their parts are.
#include "core/pool/round_plans.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tributary {
namespace {

constexpr int kLeafTokens = 64;

/// Sequence 1 on worker 0; sequence 2 at home there, with a leaf on worker 1.
class RoundPlansTest : public testing::Test {
 protected:
  RoundPlansTest() {
    table_.apply(AdmitOp{{.id = 1,
                          .epoch = 1,
                          .prompt_tokens = 10,
                          .limit_tokens = 64,
                          .length = 10,
                          .leaves = {{0, {0}}}}});
    table_.apply(AdmitOp{{.id = 2,
                          .epoch = 1,
                          .prompt_tokens = 70,
                          .limit_tokens = 128,
                          .length = 70,
                          .leaves = {{1, {0}}, {0, {1}}}}});
    order_.step = {{1, 1, 1}, {2, 1, 2}};
  }
  bool prepare() {
    return plans_.prepare(order_, table_, [&](const Routing& routing) {
      ++chosen_;
      return routing.exchanged(routing.items[0]) ? Exchange::kAllToAll : Exchange::kAllGather;
    });
  }

  SequenceTable table_{kLeafTokens};
  Order order_;
  RoundPlans plans_{2, 0, kLeafTokens, false};
  int chosen_ = 0;
};

TEST_F(RoundPlansTest, AreKeptForTheSameItemsInTheSameHalves) {
  EXPECT_FALSE(prepare());
  EXPECT_TRUE(prepare());
  order_.first_half = 1;
  EXPECT_FALSE(prepare());
  EXPECT_EQ(plans_.parts().size(), 2U);
  EXPECT_TRUE(prepare());
  plans_.forget(3);
  EXPECT_TRUE(prepare()) << "of another sequence";
  plans_.forget(2);
  EXPECT_FALSE(prepare());
  order_.first_half = 0;
  EXPECT_FALSE(prepare());
  EXPECT_EQ(plans_.parts().size(), 1U);
  EXPECT_EQ(chosen_, 1 + 2 + 2 + 1);
}

TEST_F(RoundPlansTest, HalvesHaveExchangesAndItemsOfTheirOwn) {
  order_.first_half = 1;
  EXPECT_FALSE(prepare());
  const RankPlan& first = plans_.parts()[0].plan;
  const RankPlan& second = plans_.parts()[1].plan;
  EXPECT_FALSE(first.tokens_travel);
  EXPECT_EQ(first.exchange, Exchange::kAllGather);
  EXPECT_TRUE(second.tokens_travel);
  EXPECT_EQ(second.exchange, Exchange::kAllToAll);
  EXPECT_EQ(plans_.worker_rows(), (std::vector<std::int64_t>{11 + 2 * 8, 2 * 64}));
  EXPECT_EQ(plans_.mean_spread(), 1.5);
  const std::vector<std::int32_t> layers{5, 6};
  const auto round = plans_.round(layers);
  ASSERT_EQ(round[1].item_layer.size(), 1U);
  EXPECT_EQ(round[1].item_layer[0], 6);
  EXPECT_EQ(round[1].plan.homed[0].item, 0) << "of its half";
}

}  // namespace
}  // namespace tributary
