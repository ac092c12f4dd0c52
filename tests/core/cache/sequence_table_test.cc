#include "core/cache/sequence_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/core/base/expect_error.h"
#include "tests/core/cache/same_sequence.h"

namespace tributary {
namespace {

constexpr int kLeaf = 128;  // two pages

/// 200 rows (leaf 0 full, leaf 1 with two pages) of at most 300.
Sequence example_sequence(SequenceId id = 7) {
  return {.id = id,
          .epoch = 1,
          .home = 1,
          .tag = 42,
          .prompt_tokens = 200,
          .limit_tokens = 300,
          .length = 200,
          .leaves = {{0, {5, 3}}, {1, {9, 8}}, {2, {}}}};
}

class SequenceTableTest : public testing::Test {
 protected:
  SequenceTableTest() { table_.apply(AdmitOp{example_sequence()}); }

  void expect_refused(const TableOp& op, ErrorCode code) {
    const Sequence before = table_.at(7);
    EXPECT_EQ(code_of([&] { table_.apply(op); }), code);
    EXPECT_EQ(table_.size(), 1U);
    EXPECT_TRUE(same_sequence(table_.at(7), before));
  }
  /// The example_sequence with one change must be refused.
  void expect_not_admitted(void (*change)(Sequence&)) {
    Sequence other = example_sequence(8);
    change(other);
    expect_refused(AdmitOp{other}, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(table_.contains(8));
  }

  SequenceTable table_{kLeaf};
};

TEST(SequenceTable, ALeafIsAPowerOfTwoOfPages) {
  for (const int good : {64, 128, 2048, 1 << 20}) {
    EXPECT_EQ(SequenceTable(good).leaf_tokens(), good);
  }
  for (const int bad : {-64, 0, 1, 32, 63, 65, 96, 192, 2047}) {
    EXPECT_EQ(code_of([&] { const SequenceTable table(bad); }), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST_F(SequenceTableTest, AnotherOneGoesOnFromWhatItHas) {
  table_.apply(AdmitOp{example_sequence(3)});
  table_.apply(LoseOp{7, 2, {1}});  // rows that an admission could not lack
  table_.apply(ExtendOp{3, 2, 2, {1}});
  SequenceTable other(kLeaf);
  other.apply(AdmitOp{example_sequence(99)});
  other.restore(table_.all());
  EXPECT_EQ(other.size(), 2U);
  for (SequenceTable* table : {&table_, &other}) table->apply(ExtendOp{7, 1, 0, {6, 7}});
  for (const SequenceId id : {3, 7}) EXPECT_TRUE(same_sequence(other.at(id), table_.at(id)));
  ASSERT_EQ(other.all().size(), 2U);
  EXPECT_EQ(other.all()[0].id, 3U) << "by id";
}

TEST_F(SequenceTableTest, AdmitsASequence) {
  EXPECT_TRUE(table_.contains(7));
  EXPECT_TRUE(same_sequence(table_.at(7), example_sequence()));
  EXPECT_FALSE(table_.contains(8));
  EXPECT_EQ(code_of([&] { (void)table_.at(8); }), ErrorCode::kNotFound);
  expect_refused(AdmitOp{example_sequence()}, ErrorCode::kInvalidArgument);
}

TEST_F(SequenceTableTest, RefusesSequencesThatDoNotAddUp) {
  expect_not_admitted([](Sequence& s) { s.leaves.pop_back(); });
  expect_not_admitted([](Sequence& s) { s.leaves.push_back({0, {}}); });
  expect_not_admitted([](Sequence& s) { s.limit_tokens = -1; });
  expect_not_admitted([](Sequence& s) { s.length = 301; });
  expect_not_admitted([](Sequence& s) { s.length = -1; });
  expect_not_admitted([](Sequence& s) { s.leaves[0].pages.pop_back(); });
  expect_not_admitted([](Sequence& s) { s.leaves[1].pages.clear(); });
  expect_not_admitted([](Sequence& s) { s.leaves[1].pages.push_back(10); });
  expect_not_admitted([](Sequence& s) { s.leaves[2].pages.push_back(10); });
}

TEST_F(SequenceTableTest, ExtendAddsPagesAndMayChooseTheOwnerOfAnEmptyLeaf) {
  table_.apply(ExtendOp{7, 2, 0, {4}});
  EXPECT_EQ(table_.at(7).leaves[2].owner, 0);
  EXPECT_EQ(table_.at(7).leaves[2].pages, (std::vector<std::int32_t>{4}));
  table_.apply(ExtendOp{7, 2, 0, {6}});
  EXPECT_EQ(table_.at(7).leaves[2].pages, (std::vector<std::int32_t>{4, 6}));
}

TEST_F(SequenceTableTest, RefusesExtensionsThatDoNotFit) {
  expect_refused(ExtendOp{8, 2, 0, {4}}, ErrorCode::kNotFound);
  expect_refused(ExtendOp{7, 3, 0, {4}}, ErrorCode::kInvalidArgument);
  expect_refused(ExtendOp{7, -1, 0, {4}}, ErrorCode::kInvalidArgument);
  expect_refused(ExtendOp{7, 1, 1, {4}}, ErrorCode::kInvalidArgument);        // a third page
  expect_refused(ExtendOp{7, 2, 0, {4, 6, 7}}, ErrorCode::kInvalidArgument);  // of two
  table_.apply(ExtendOp{7, 2, 0, {4}});
  expect_refused(ExtendOp{7, 2, 1, {6}}, ErrorCode::kInvalidArgument);  // page 4 is worker 0's
}

TEST_F(SequenceTableTest, CommitGrowsUpToTheLimit) {
  table_.apply(CommitOp{7, 0});
  EXPECT_EQ(table_.at(7).length, 200);
  table_.apply(CommitOp{7, 100});
  EXPECT_EQ(table_.at(7).length, 300);
  EXPECT_EQ(table_.at(7).epoch, 1U);
  expect_refused(CommitOp{7, 1}, ErrorCode::kInvalidArgument);
  expect_refused(CommitOp{7, -1}, ErrorCode::kInvalidArgument);
  expect_refused(CommitOp{8, 1}, ErrorCode::kNotFound);
}

TEST_F(SequenceTableTest, TruncateDropsPagesAndBeginsAnEpoch) {
  table_.apply(TruncateOp{7, 2, 192});
  EXPECT_EQ(table_.at(7).length, 192);
  EXPECT_EQ(table_.at(7).epoch, 2U);
  EXPECT_EQ(table_.at(7).leaves[1].pages, (std::vector<std::int32_t>{9}));
  table_.apply(TruncateOp{7, 3, 65});
  EXPECT_EQ(table_.at(7).leaves[0].pages, (std::vector<std::int32_t>{5, 3}));
  EXPECT_TRUE(table_.at(7).leaves[1].pages.empty());
  EXPECT_EQ(table_.at(7).leaves[1].owner, 1);
  table_.apply(TruncateOp{7, 4, 0});
  EXPECT_TRUE(table_.at(7).leaves[0].pages.empty());
  EXPECT_EQ(table_.at(7).leaves.size(), 3U);
}

TEST_F(SequenceTableTest, TruncateToTheLengthDropsWhatAStepTookInVain) {
  table_.apply(ExtendOp{7, 2, 0, {4}});
  table_.apply(TruncateOp{7, 2, 200});
  EXPECT_EQ(table_.at(7).length, 200);
  EXPECT_EQ(table_.at(7).leaves[1].pages.size(), 2U);
  EXPECT_TRUE(table_.at(7).leaves[2].pages.empty());
}

TEST_F(SequenceTableTest, RefusesTruncationsThatDoNotFit) {
  expect_refused(TruncateOp{7, 2, 201}, ErrorCode::kInvalidArgument);
  expect_refused(TruncateOp{7, 2, -1}, ErrorCode::kInvalidArgument);
  expect_refused(TruncateOp{7, 1, 10}, ErrorCode::kStaleEpoch);
  expect_refused(TruncateOp{7, 0, 10}, ErrorCode::kStaleEpoch);
  expect_refused(TruncateOp{8, 2, 10}, ErrorCode::kNotFound);
}

TEST_F(SequenceTableTest, AMoveChangesOwnerAndPagesAndNothingElse) {
  table_.apply(CommitOp{7, 60});  // leaf 1 is full
  Sequence expected = table_.at(7);
  expected.leaves[0] = {3, {1, 2}};
  expected.leaves[1] = {3, {7, 4}};
  table_.apply(MoveOp{7, 0, 3, {1, 2, 7, 4}});
  EXPECT_TRUE(same_sequence(table_.at(7), expected));
  expected.leaves[1] = {0, {5, 6}};
  table_.apply(MoveOp{7, 1, 0, {5, 6}});
  EXPECT_TRUE(same_sequence(table_.at(7), expected));
}

TEST_F(SequenceTableTest, ALeafThatGrowsMovesWithThePagesThatItHas) {
  table_.apply(ExtendOp{7, 2, 0, {9}});
  Sequence expected = table_.at(7);
  expected.leaves[2] = {1, {3}};
  table_.apply(MoveOp{7, 2, 1, {3}});
  EXPECT_TRUE(same_sequence(table_.at(7), expected));
}

TEST_F(SequenceTableTest, AnotherHomeChangesNothingElse) {
  Sequence expected = table_.at(7);
  expected.home = 5;
  table_.apply(HomeOp{7, 5});
  EXPECT_TRUE(same_sequence(table_.at(7), expected));
  expect_refused(HomeOp{8, 5}, ErrorCode::kNotFound);
}

TEST_F(SequenceTableTest, ALostLeafGetsPagesForAllItsRowsAgain) {
  Sequence expected = table_.at(7);
  const std::size_t pages = expected.leaves[1].pages.size();
  expected.epoch = 2;
  expected.lost_since = 1;
  expected.leaves[1] = {kNoWorker, {}};
  expected.leaves[2] = {kNoWorker, {}};
  table_.apply(LoseOp{7, 2, {1, 2}});
  EXPECT_TRUE(same_sequence(table_.at(7), expected));
  EXPECT_TRUE(table_.gives_rows_back(ExtendOp{7, 1, 0, {}}));
  EXPECT_FALSE(table_.gives_rows_back(ExtendOp{7, 0, 0, {}}));  // it has them
  EXPECT_FALSE(table_.gives_rows_back(ExtendOp{7, 2, 0, {}}));  // it had none
  EXPECT_FALSE(table_.gives_rows_back(HomeOp{7, 1}));
  EXPECT_EQ(code_of([&] {
              (void)table_.gives_rows_back(ExtendOp{8, 0, 0, {}});
            }),
            ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] {
              (void)table_.gives_rows_back(ExtendOp{7, 3, 0, {}});
            }),
            ErrorCode::kInvalidArgument);
  expect_refused(ExtendOp{7, 1, 4, std::vector<std::int32_t>(pages - 1, 8)},
                 ErrorCode::kInvalidArgument);
  expect_refused(ExtendOp{7, 1, 4, {}}, ErrorCode::kInvalidArgument);
  expected.leaves[1] = {4, std::vector<std::int32_t>(pages, 8)};
  table_.apply(ExtendOp{7, 1, 4, expected.leaves[1].pages});
  expected.leaves[2].owner = 3;
  table_.apply(ExtendOp{7, 2, 3, {}});
  EXPECT_TRUE(same_sequence(table_.at(7), expected));
}

TEST_F(SequenceTableTest, RefusesLossesThatDoNotFit) {
  expect_refused(LoseOp{8, 2, {0}}, ErrorCode::kNotFound);
  expect_refused(LoseOp{7, 2, {0, 3}}, ErrorCode::kInvalidArgument);
  expect_refused(LoseOp{7, 2, {-1}}, ErrorCode::kInvalidArgument);
  expect_refused(LoseOp{7, 1, {0}}, ErrorCode::kStaleEpoch);  // it has rows
  expect_refused(LoseOp{7, 0, {2}}, ErrorCode::kStaleEpoch);
  table_.apply(LoseOp{7, 1, {2}});  // it has none
  EXPECT_EQ(table_.at(7).leaves[2].owner, kNoWorker);
}

TEST_F(SequenceTableTest, RefusesMovesThatDoNotFit) {
  expect_refused(MoveOp{8, 0, 1, {1, 2}}, ErrorCode::kNotFound);
  expect_refused(MoveOp{7, -1, 1, {1, 2}}, ErrorCode::kInvalidArgument);
  expect_refused(MoveOp{7, 1, 1, {1, 2, 3}}, ErrorCode::kInvalidArgument);
  expect_refused(MoveOp{7, 2, 1, {1, 2}}, ErrorCode::kInvalidArgument);  // has no pages
  expect_refused(MoveOp{7, 0, 1, {1, 2, 3, 4, 5}}, ErrorCode::kInvalidArgument);
  expect_refused(MoveOp{7, 0, 1, {1}}, ErrorCode::kInvalidArgument);
  expect_refused(MoveOp{7, 0, 1, {}}, ErrorCode::kInvalidArgument);
}

TEST_F(SequenceTableTest, FreeForgets) {
  expect_refused(FreeOp{8}, ErrorCode::kNotFound);
  table_.apply(FreeOp{7});
  EXPECT_EQ(table_.size(), 0U);
  EXPECT_FALSE(table_.contains(7));
  EXPECT_EQ(code_of([&] { table_.apply(FreeOp{7}); }), ErrorCode::kNotFound);
}

TEST_F(SequenceTableTest, ARaisedLimitAddsLeavesWithoutPages) {
  table_.apply(RaiseLimitOp{7, 384, {}});  // the last leaf's rest
  EXPECT_EQ(table_.at(7).limit_tokens, 384);
  EXPECT_EQ(table_.at(7).leaves.size(), 3U);
  table_.apply(RaiseLimitOp{7, 513, {1, 0}});
  EXPECT_EQ(table_.at(7).limit_tokens, 513);
  ASSERT_EQ(table_.at(7).leaves.size(), 5U);
  EXPECT_EQ(table_.at(7).leaves[3].owner, 1);
  EXPECT_TRUE(table_.at(7).leaves[4].pages.empty());
  EXPECT_EQ(table_.at(7).epoch, 1U);
  expect_refused(RaiseLimitOp{7, 512, {}}, ErrorCode::kInvalidArgument);
  expect_refused(RaiseLimitOp{7, 641, {}}, ErrorCode::kInvalidArgument);
  expect_refused(RaiseLimitOp{7, 640, {1}}, ErrorCode::kInvalidArgument);
  expect_refused(RaiseLimitOp{8, 640, {}}, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tributary
