#include "core/sequencer/move_book.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

RunningMove example(SequenceId id, std::int32_t to) {
  return {.move = {.id = id, .first_leaf = 2, .end_leaf = 3, .to = to},
          .from = 0,
          .from_pages = {10, 11},
          .to_pages = {20, 21}};
}

TEST(MoveBook, CopiesPageByPageAllLayersOfEach) {
  MoveBook book(3);
  book.begin(example(1, 4));
  std::vector<PageCopy> copies;
  EXPECT_EQ(book.next_copies(4, copies), 4);
  EXPECT_EQ(book.next_copies(0, copies), 0);
  EXPECT_EQ(book.next_copies(100, copies), 2);
  const std::vector<PageCopy> expected{{0, 10, 4, 20, 0}, {0, 10, 4, 20, 1}, {0, 10, 4, 20, 2},
                                       {0, 11, 4, 21, 0}, {0, 11, 4, 21, 1}, {0, 11, 4, 21, 2}};
  EXPECT_EQ(copies, expected);
}

TEST(MoveBook, ARowIsCopiedOnlyWhenItsOrderHasEnded) {
  MoveBook book(1);
  book.begin(example(1, 4));
  std::vector<PageCopy> copies;
  EXPECT_EQ(book.next_copies(2, copies), 2);
  EXPECT_TRUE(book.ended(true).completed.empty()) << "ordered, but not taken";
  book.taken();
  EXPECT_FALSE(book.empty());
  const MoveBook::Ended ended = book.ended(true);
  ASSERT_EQ(ended.completed.size(), 1U);
  EXPECT_EQ(ended.completed[0].move, example(1, 4).move);
  EXPECT_TRUE(ended.failed.empty());
  EXPECT_TRUE(book.empty());
}

TEST(MoveBook, AFailedOrderEndsTheMovesThatHadCopiesInIt) {
  MoveBook book(1);
  book.begin(example(1, 4));
  book.begin(example(2, 5));
  std::vector<PageCopy> copies;
  (void)book.next_copies(1, copies);
  book.taken();
  const MoveBook::Ended ended = book.ended(false);
  ASSERT_EQ(ended.failed.size(), 1U);
  EXPECT_EQ(ended.failed[0].move.id, 1U);
  EXPECT_TRUE(book.contains(2));
  EXPECT_TRUE(book.ended(false).failed.empty()) << "nothing of it was in an order";
}

TEST(MoveBook, MovesProceedInTheOrderInWhichTheyBegan) {
  MoveBook book(1);
  book.begin(example(2, 5));
  book.begin(example(1, 4));
  std::vector<PageCopy> copies;
  (void)book.next_copies(3, copies);
  ASSERT_EQ(copies.size(), 3U);
  EXPECT_EQ(copies[1].to, 5);
  EXPECT_EQ(copies[2].to, 4);
}

TEST(MoveBook, RemovesWhatIsCancelled) {
  MoveBook book(1);
  book.begin(example(1, 4));
  EXPECT_FALSE(book.remove(2));
  EXPECT_EQ(book.remove(1)->to_pages, (std::vector<std::int32_t>{20, 21}));
  EXPECT_FALSE(book.remove(1));
}

TEST(MoveBook, RefusesWhatCannotBe) {
  EXPECT_EQ(code_of([] { const MoveBook book(0); }), ErrorCode::kInvalidArgument);
  MoveBook book(1);
  book.begin(example(1, 4));
  EXPECT_EQ(code_of([&] { book.begin(example(1, 5)); }), ErrorCode::kAlreadyExists);
  RunningMove uneven = example(2, 4);
  uneven.to_pages.pop_back();
  EXPECT_EQ(code_of([&] { book.begin(uneven); }), ErrorCode::kInternal);
}

}  // namespace
}  // namespace tributary
