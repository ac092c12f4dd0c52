#include "deploy/service/worker/leader/lease_book.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

using std::chrono::milliseconds;

TEST(LeaseBook, EndsTheLongestSilentFirst) {
  LeaseBook book(milliseconds(100));
  const Time begin{};
  EXPECT_FALSE(book.next_end());
  book.add(1, begin);
  book.add(2, begin + milliseconds(10));
  EXPECT_EQ(book.next_end(), begin + milliseconds(100));
  book.touch(1, begin + milliseconds(50));
  book.touch(7, begin + milliseconds(60));  // unknown
  EXPECT_EQ(book.next_end(), begin + milliseconds(110));
  EXPECT_FALSE(book.expired(begin + milliseconds(109)));
  EXPECT_EQ(book.expired(begin + milliseconds(110)), 2U);
  book.remove(2);
  EXPECT_FALSE(book.expired(begin + milliseconds(149)));
  EXPECT_EQ(book.expired(begin + milliseconds(150)), 1U);
  book.remove(1);
  book.remove(1);
  EXPECT_FALSE(book.next_end());
}

TEST(LeaseBook, WordsThatComeLateCountFromWhenTheyWereSaid) {
  LeaseBook book(milliseconds(100));
  const Time begin{};
  for (const SequenceId id : {1, 2, 3}) book.add(id, begin);
  book.touch(3, begin + milliseconds(60));
  book.touch(1, begin + milliseconds(40));
  book.touch(2, begin + milliseconds(20));
  book.touch(2, begin + milliseconds(10));  // older than what is known
  for (const SequenceId id : {2, 1, 3}) {
    const auto end = begin + milliseconds(100 + 20 * (id == 2 ? 1 : id == 1 ? 2 : 3));
    EXPECT_EQ(book.next_end(), end);
    EXPECT_FALSE(book.expired(end - milliseconds(1)));
    EXPECT_EQ(book.expired(end), id);
    book.remove(id);
  }
  EXPECT_FALSE(book.next_end());
}

}  // namespace
}  // namespace tributary
