#include "core/sequencer/leaf_moves.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "core/sequencer/sequencer.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

/// Three workers, leaves of two pages; sequences lie whole on their homes.
class LeafMovesTest : public testing::Test {
 protected:
  explicit LeafMovesTest(int layers = 1)
      : sequencer_({.placement = {.workers = 3, .model = default_cost_model(128, layers)},
                    .pages_per_worker = 40,
                    .incarnation = 1}) {}

  const Sequence& admit() {
    const auto id = sequencer_.sequences().admit(
        {.prompt_tokens = 300, .max_new_tokens = 1, .spread = SpreadPolicy::kSingle});
    sequencer_.sequences().prompt_arrived(id.value());
    return sequencer_.ledger().table().at(*id);
  }
  /// A step of `tokens` tokens that nobody has committed.
  void run_step(const Sequence& s, int tokens) {
    const StepItem step = next_item(s, tokens);
    sequencer_.steps().open(std::span(&step, 1));
    sequencer_.steps().order_round(std::span(&step, 1));
    (void)sequencer_.take_order();
    sequencer_.order_ended(true);
  }
  /// Leaf 1 goes to the next worker.
  static LeafMove next_worker(const Sequence& s) { return {s.id, 1, 2, (s.home + 1) % 3}; }

  Sequencer sequencer_;
  LeafMoves& moves_ = sequencer_.moves();
};

struct LeafMovesOfLayers : LeafMovesTest {
  LeafMovesOfLayers() : LeafMovesTest(3) {}
};

TEST_F(LeafMovesOfLayers, CopyPageByPageAllLayersOfEach) {
  const Sequence& s = admit();
  const LeafMove move = next_worker(s);
  moves_.begin(move);
  EXPECT_EQ(moves_.order_copies(4), 4);
  EXPECT_EQ(moves_.order_copies(0), 0);
  EXPECT_EQ(moves_.order_copies(100), 2);
  std::vector<PageCopy> expected;
  for (const std::size_t page : {0U, 1U}) {
    for (int layer = 0; layer < 3; ++layer) {
      expected.push_back(
          {s.home, s.leaves[1].pages[page], move.to, moves_.running()[0].to_pages.at(page), layer});
    }
  }
  EXPECT_EQ(sequencer_.take_order().copies, expected);
}

TEST_F(LeafMovesTest, ALeafChangesItsOwnerWhenTheOrderOfItsCopiesHasEnded) {
  const Sequence& s = admit();
  const LeafMove move = next_worker(s);
  moves_.begin(move);
  EXPECT_EQ(moves_.order_copies(2), 2);
  moves_.order_ended(true);
  EXPECT_EQ(moves_.running().size(), 1U) << "ordered, but not taken";
  (void)sequencer_.take_order();
  EXPECT_EQ(s.leaves[1].owner, s.home);
  moves_.order_ended(true);
  EXPECT_EQ(s.leaves[1].owner, move.to);
  EXPECT_TRUE(moves_.running().empty());
  EXPECT_EQ(moves_.totals().completed, 1U);
  EXPECT_EQ(moves_.totals().page_copies, 2U);
}

TEST_F(LeafMovesTest, AFailedOrderEndsTheMovesThatHadCopiesInIt) {
  const Sequence& a = admit();
  const Sequence& b = admit();
  moves_.begin(next_worker(b));
  moves_.begin(next_worker(a));
  EXPECT_EQ(moves_.order_copies(1), 1) << "of the one that began first";
  (void)sequencer_.take_order();
  moves_.order_ended(false);
  ASSERT_EQ(moves_.running().size(), 1U);
  EXPECT_EQ(moves_.running()[0].move, next_worker(a));
  EXPECT_EQ(moves_.totals().cancelled, 1U);
  moves_.order_ended(false);
  EXPECT_EQ(moves_.running().size(), 1U) << "nothing of it was in an order";
  EXPECT_EQ(moves_.totals().page_copies, 0U);
}

TEST_F(LeafMovesTest, TheLastPagesOfANewestLeafGoWithTheOrderThatMovesItUntilOneSucceeds) {
  const auto id = sequencer_.sequences().admit(
      {.prompt_tokens = 310, .max_new_tokens = 100, .spread = SpreadPolicy::kSingle});
  sequencer_.sequences().prompt_arrived(id.value());
  const Sequence& s = sequencer_.ledger().table().at(*id);
  run_step(s, 10);

  const std::int32_t from = s.home;
  const std::int32_t page = s.leaves[2].pages.front();
  const auto next = [&] { return LeafMove{*id, 2, 3, (s.leaves[2].owner + 1) % 3}; };
  moves_.begin(next());
  EXPECT_EQ(moves_.order_copies(100), 1);
  EXPECT_NE(s.leaves[2].owner, from);
  const std::vector<PageCopy> last{{from, page, s.leaves[2].owner, s.leaves[2].pages.front(), 0}};
  EXPECT_EQ(sequencer_.take_order().copies, last);
  sequencer_.order_ended(false);

  // Its page is full now, and has not arrived: it cannot be copied on.
  sequencer_.steps().commit(*id, 10);
  moves_.begin(next());
  EXPECT_EQ(moves_.order_copies(100), 0);
  EXPECT_EQ(sequencer_.take_order().copies, last) << "again";
  EXPECT_GT(sequencer_.ledger().pools()[static_cast<std::size_t>(from)].used(), 4);
  sequencer_.order_ended(true);
  EXPECT_EQ(moves_.order_copies(100), 1);
  (void)sequencer_.take_order();
  sequencer_.order_ended(true);
  EXPECT_EQ(moves_.order_copies(100), 0);
  EXPECT_EQ(s.leaves[2].owner, (from + 2) % 3);
  EXPECT_EQ(sequencer_.copies().size(), 0U);
  EXPECT_EQ(sequencer_.ledger().pools()[static_cast<std::size_t>(from)].used(), 4);
}

TEST_F(LeafMovesTest, APageThatWaitsForItsRowsAndIsAnothersTooIsNotCutShort) {
  const auto names = [](char first, int blocks) {
    Prefix prefix{.block_tokens = 64};
    for (int i = 0; i < blocks; ++i) prefix.add_key(std::string(16, static_cast<char>(first + i)));
    return prefix;
  };
  Sequences& sequences = sequencer_.sequences();
  const auto id = sequences.admit({.prompt_tokens = 310,
                                   .max_new_tokens = 100,
                                   .spread = SpreadPolicy::kSingle,
                                   .prefix = names('a', 4)});
  sequences.prompt_arrived(id.value());
  const Sequence& s = sequencer_.ledger().table().at(*id);
  run_step(s, 10);
  moves_.begin({*id, 2, 3, (s.home + 1) % 3});
  EXPECT_EQ(moves_.order_copies(100), 1);
  (void)sequencer_.take_order();
  sequencer_.order_ended(false);

  // The page is filled, named and shared before its rows are there.
  sequencer_.steps().commit(*id, 10);
  sequences.name_blocks(*id, names('e', 1), 4);
  const auto other =
      sequences.admit({.prompt_tokens = 330, .max_new_tokens = 1, .prefix = names('a', 5)});
  ASSERT_EQ(sequencer_.ledger().table().at(other.value()).present_tokens, 320);
  EXPECT_EQ(code_of([&] { sequences.truncate(*id, 300); }), ErrorCode::kUnavailable);
  EXPECT_EQ(s.length, 320);
  EXPECT_EQ(s.epoch, 1U);
  (void)sequencer_.take_order();
  sequencer_.order_ended(true);
  sequences.truncate(*id, 300);
  EXPECT_EQ(s.length, 300);
  EXPECT_EQ(sequencer_.copies().size(), 1U) << "a page of its own";
}

TEST_F(LeafMovesTest, ACancelledMoveLeavesNoCopiesAndNoPages) {
  const Sequence& s = admit();
  const LeafMove move = next_worker(s);
  const PagePool& target = sequencer_.ledger().pools()[static_cast<std::size_t>(move.to)];
  ASSERT_EQ(target.available(), 40);
  EXPECT_EQ(code_of([&] { moves_.begin({s.id, 1, 2, s.home}); }), ErrorCode::kInvalidArgument);
  moves_.begin(move);
  EXPECT_EQ(code_of([&] { moves_.begin(move); }), ErrorCode::kAlreadyExists);
  EXPECT_EQ(target.used(), 2);
  EXPECT_EQ(moves_.order_copies(1), 1);
  moves_.cancel(s.id + 1);
  EXPECT_EQ(moves_.running().size(), 1U);
  moves_.cancel(s.id);
  EXPECT_TRUE(moves_.running().empty());
  EXPECT_TRUE(sequencer_.take_order().copies.empty());
  EXPECT_EQ(target.used(), 0);
  EXPECT_EQ(target.available(), 40);
}

}  // namespace
}  // namespace tributary
