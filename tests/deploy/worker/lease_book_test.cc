#include "deploy/worker/lease_book.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

using std::chrono::milliseconds;

TEST(LeaseBook, EndsTheLongestSilentFirst) {
  LeaseBook book(milliseconds(100));
  const LeaseBook::Time begin{};
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

}  // namespace
}  // namespace tributary
