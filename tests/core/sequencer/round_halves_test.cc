// When rounds are cut in halves, and into which.
#include "core/sequencer/round_halves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "core/cost/overlap.h"
#include "core/model/model_shape.h"
#include "core/model/pool_shape.h"
#include "core/sequencer/sequencer.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

constexpr int kWorkers = 16;

/// Two nodes of H200s: what is sent between them takes long.
CostModelConfig two_nodes() {
  const ModelShape& v3 = model_preset("deepseek-v3");
  CostModelConfig model = default_cost_model();
  model.costs = find_built_in_costs("h200").costs;
  model.attention = attention_shape(v3, RowFormat::kBF16, DType::kBF16, ProjectAt::kHome);
  model.layers = v3.num_hidden_layers;
  model.workers_per_node = 8;
  return model;
}

/// Two leaves on the workers `first` and `last`, at home with the first.
PlacedSequence cut(std::int32_t first, std::int32_t last) {
  return {.runs = {{first, 0, 1}, {last, 1, 2}}, .home = first, .tokens = std::int64_t{2} * 2048};
}
PlacedSequence whole(std::int32_t worker, std::int64_t leaves) {
  return {.runs = {{worker, 0, leaves}}, .home = worker, .tokens = leaves * 2048};
}

/// Every worker has a whole sequence, long enough to hide what those that are cut across the nodes
/// exchange.
std::vector<PlacedSequence> that_pays() {
  std::vector<PlacedSequence> all;
  for (std::int32_t w = 0; w < kWorkers; ++w) all.push_back(whole(w, 48));
  for (int i = 0; i < 4; ++i) {
    for (std::int32_t w = 0; w < kWorkers; ++w) all.push_back(cut(w, (w + 8) % kWorkers));
  }
  return all;
}

class Running {
 public:
  explicit Running(Overlap overlap)
      : prices_(two_nodes(), kWorkers),
        load_(kWorkers, 8, two_nodes().leaf_tokens, 0),
        halves_(overlap, load_) {}

  void add(SequenceId id, const PlacedSequence& s) {
    load_.add(s);
    halves_.add(id, s.runs, s.home, s.tokens);
  }
  void remove(SequenceId id, const PlacedSequence& s) {
    load_.remove(s.runs, s.home, s.tokens);
    halves_.remove(id);
  }
  void settle() {
    for (int call = 0; call < 100; ++call) halves_.improve(load_, prices_);
  }
  void begin(std::size_t steps) { halves_.begun(steps, load_, prices_); }
  [[nodiscard]] const RoundHalves& halves() const { return halves_; }

 private:
  RoundPrices prices_;
  PoolLoad load_;
  RoundHalves halves_;
};

TEST(RoundHalves, BeginWhereTheyPayAndEndWhereTheyDoNot) {
  Running running(Overlap::kAuto);
  const std::vector<PlacedSequence> all = that_pays();
  const OverlapGain best = predict_overlap(two_nodes(), all, kWorkers);
  const double gain = 1 - best.halves_us / best.step_us;
  ASSERT_GT(gain, kOverlapPays) << "else this test has no subject";
  for (SequenceId i = 0; i < all.size(); ++i) running.add(i, all[i]);
  EXPECT_FALSE(running.halves().on()) << "nobody has looked";
  running.settle();
  EXPECT_TRUE(running.halves().on());
  EXPECT_NEAR(running.halves().gain(), gain, 0.01);
  // Without the cut ones nothing travels.
  for (SequenceId i = kWorkers; i < all.size(); ++i) running.remove(i, all[i]);
  running.settle();
  EXPECT_FALSE(running.halves().on());
  EXPECT_EQ(running.halves().gain(), 0);
}

TEST(RoundHalves, StepsThatBeginOneByOneAreLookedAtOnceForAll) {
  const std::vector<PlacedSequence> all = that_pays();
  Running together(Overlap::kAuto);
  Running alone(Overlap::kAuto);
  for (SequenceId i = 0; i < all.size(); ++i) {
    together.add(i, all[i]);
    alone.add(i, all[i]);
  }
  together.begin(all.size());
  ASSERT_TRUE(together.halves().on()) << "else this test has no subject";
  for (int step = 0; step < 10; ++step) {
    if (step > 0) together.begin(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (step == 0) {
        EXPECT_FALSE(alone.halves().on()) << "after " << i << " of " << all.size();
      }
      alone.begin(1);
    }
    EXPECT_EQ(alone.halves().gain(), together.halves().gain());
  }
}

TEST(RoundHalves, SequencesThatComeAgainDoNotShiftTheTurnsOfNewOnes) {
  Running running(Overlap::kAlways);
  std::array<int, 2> members{};
  for (SequenceId i = 0; i < 8; ++i) {
    running.add(i, whole(0, 1));
    running.remove(i, whole(0, 1));
    running.add(i, whole(0, 2));
    ++members[running.halves().half_of(i) == 0 ? 0 : 1];
  }
  EXPECT_EQ(members, (std::array{4, 4}));
}

TEST(RoundHalves, ASequenceThatComesAgainKeepsItsHalf) {
  Running running(Overlap::kAuto);
  const std::vector<PlacedSequence> all = that_pays();
  for (SequenceId i = 0; i < all.size(); ++i) running.add(i, all[i]);
  running.settle();
  for (SequenceId i = 0; i < all.size(); ++i) {
    const int half = running.halves().half_of(i);
    running.remove(i, all[i]);
    running.add(i, all[i]);
    EXPECT_EQ(running.halves().half_of(i), half) << i;
  }
}

TEST(RoundHalves, AlwaysCutsWhateverIsPredicted) {
  Running running(Overlap::kAlways);
  running.add(1, whole(0, 1));
  running.add(2, whole(1, 1));
  running.add(3, cut(0, 1));
  running.settle();
  EXPECT_TRUE(running.halves().on());
  EXPECT_NE(running.halves().half_of(1), running.halves().half_of(2));
}

TEST(RoundHalves, AlwaysCutsAgainWhenOneHalfHasEnded) {
  Running running(Overlap::kAlways);
  const std::vector<PlacedSequence> all(8, whole(0, 1));
  for (SequenceId i = 0; i < all.size(); ++i) running.add(i, all[i]);
  std::vector<SequenceId> first;
  for (SequenceId i = 0; i < all.size(); ++i) {
    if (running.halves().half_of(i) == 0) first.push_back(i);
  }
  for (const SequenceId id : first) running.remove(id, all[id]);
  running.settle();
  EXPECT_TRUE(running.halves().on());
  int in_first = 0;
  for (SequenceId i = 0; i < all.size(); ++i) {
    if (std::ranges::find(first, i) == first.end()) in_first += 1 - running.halves().half_of(i);
  }
  EXPECT_GT(in_first, 0);
  EXPECT_LT(in_first, 4);
}

TEST(RoundHalves, OverlapHasNames) {
  for (const Overlap overlap : {Overlap::kNever, Overlap::kAuto, Overlap::kAlways}) {
    EXPECT_EQ(parse_overlap(overlap_name(overlap)), overlap);
  }
  EXPECT_EQ(message_of([] { (void)parse_overlap("on"); }),
            "overlap is 'on', expected never, auto or always");
}

/// Ids of four sequences whose second and fourth are in the same half.
class HalvedSequencer : public testing::Test {
 protected:
  HalvedSequencer() {
    for (int i = 0; i < 4; ++i) {
      ids_.push_back(
          sequencer_
              .admit({.prompt_tokens = 10, .max_new_tokens = 10, .spread = SpreadPolicy::kSingle})
              .value());
      steps_.push_back({ids_.back(), 1});
    }
    (void)sequencer_.take_order();
    sequencer_.open_step(steps_);
  }
  Order round(const std::vector<std::size_t>& which, std::int32_t canary) {
    std::vector<Sequencer::RoundRequest> items;
    for (const std::size_t i : which) items.push_back({ids_[i], static_cast<std::int32_t>(i)});
    sequencer_.order_round(items, {.item = canary, .head = 0});
    return sequencer_.take_order();
  }

  Sequencer sequencer_{{.placement = {.workers = 2, .model = default_cost_model(64)},
                        .pages_per_worker = 10,
                        .incarnation = 1,
                        .overlap = Overlap::kAlways}};
  std::vector<SequenceId> ids_;
  std::vector<Sequencer::StepRequest> steps_;
};

TEST_F(HalvedSequencer, AnOrderHasTheFirstHalfInFrontWithItsLayersAndItsCanary) {
  const Order order = round({0, 1, 2, 3}, 2);
  ASSERT_EQ(order.first_half, 2);
  const std::vector<SequenceId> given{ids_[1], ids_[3], ids_[0], ids_[2]};
  std::vector<SequenceId> ids;
  for (const StepItem& item : order.step) ids.push_back(item.id);
  EXPECT_EQ(ids, given);
  EXPECT_EQ(order.item_layer, (std::vector<std::int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(order.canary.item, 3);
}

TEST_F(HalvedSequencer, ItemsOfOneHalfAreAWholeRound) {
  for (const auto& which : {std::vector<std::size_t>{0, 2}, std::vector<std::size_t>{3}}) {
    const Order order = round(which, 0);
    EXPECT_EQ(order.first_half, 0);
    EXPECT_EQ(order.canary.item, 0);
  }
}

TEST_F(HalvedSequencer, WhatIsWithdrawnLeavesItsHalf) {
  sequencer_.order_round(
      std::vector<Sequencer::RoundRequest>{{ids_[0], 0}, {ids_[1], 0}, {ids_[2], 0}, {ids_[3], 0}});
  sequencer_.commit(ids_[3], 0);
  sequencer_.commit(ids_[0], 0);
  Order order = sequencer_.take_order();
  EXPECT_EQ(order.first_half, 1);
  EXPECT_EQ(order.step[0].id, ids_[1]);
  EXPECT_EQ(order.step[1].id, ids_[2]);
  sequencer_.order_round(std::vector<Sequencer::RoundRequest>{{ids_[1], 0}, {ids_[2], 0}});
  sequencer_.commit(ids_[1], 0);
  order = sequencer_.take_order();
  EXPECT_EQ(order.first_half, 0) << "one half is a whole round";
  EXPECT_EQ(order.step.size(), 1U);
}

}  // namespace
}  // namespace tributary
