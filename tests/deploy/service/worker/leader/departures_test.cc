#include "deploy/service/worker/leader/departures.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "core/sequencer/sequencer.h"

namespace tributary {
namespace {

using std::chrono::seconds;

class DeparturesTest : public testing::Test {
 protected:
  [[nodiscard]] std::vector<int> due(Time now) const {
    return departures.due(sequencer.ledger(), now);
  }

  Sequencer sequencer{
      {.placement = {.workers = 3, .model = default_cost_model(64, 2)}, .pages_per_worker = 64}};
  Departures departures{3, seconds(10)};
  const Time begin{std::chrono::hours(1)};
};

TEST_F(DeparturesTest, AWorkerMayLeaveWhenItHoldsNothing) {
  EXPECT_TRUE(due(begin).empty()) << "nobody has asked";
  EXPECT_EQ(departures.next_event(begin), Time::max());
  // A home without pages: its prompt is nowhere yet.
  const auto id = sequencer.sequences().admit({.prompt_tokens = 64 * 100}, {.tag = 1, .id = 1});
  ASSERT_TRUE(id.has_value());
  const int home = sequencer.ledger().table().at(*id).home;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(departures.ask(rank, begin));
    EXPECT_FALSE(departures.ask(rank, begin + seconds(5))) << "once is enough";
  }
  EXPECT_LT(departures.next_event(begin), begin + seconds(1));
  std::vector<int> empty;
  for (int rank = 0; rank < 3; ++rank) {
    const PagePool& pages = sequencer.ledger().pools()[static_cast<std::size_t>(rank)];
    if (pages.used() + pages.reserved() == 0 && rank != home) empty.push_back(rank);
  }
  EXPECT_EQ(due(begin + seconds(9)), empty);
  EXPECT_EQ(due(begin + seconds(10)), (std::vector{0, 1, 2})) << "no longer than that";
}

TEST_F(DeparturesTest, OneThatCannotBeEmptiedNeedNotWait) {
  ASSERT_TRUE(sequencer.sequences().admit({.prompt_tokens = 64 * 100}, {.tag = 1, .id = 1}));
  const int home = sequencer.ledger().table().at(1).home;
  EXPECT_TRUE(departures.ask(home, begin));
  EXPECT_TRUE(due(begin).empty());
  departures.hurry(home, begin);
  EXPECT_EQ(due(begin), std::vector{home});
}

TEST_F(DeparturesTest, WhoHasGoneIsNotSeenOffAgain) {
  EXPECT_TRUE(departures.ask(1, begin));
  EXPECT_TRUE(departures.ask(2, begin));
  departures.gone(1, /*left=*/true);
  departures.gone(2, /*left=*/false);
  EXPECT_TRUE(departures.has_left(1));
  EXPECT_FALSE(departures.has_left(2)) << "it was lost first";
  EXPECT_TRUE(due(begin + seconds(20)).empty());
  EXPECT_FALSE(departures.ask(1, begin));
  EXPECT_FALSE(departures.ask(2, begin)) << "its wish came late";
}

}  // namespace
}  // namespace tributary
