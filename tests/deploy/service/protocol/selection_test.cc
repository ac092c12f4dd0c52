#include "deploy/service/protocol/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace tributary::wire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using List = std::vector<std::int32_t>;

List ordered(List list) {
  List scratch;
  order_selection(list, scratch);
  return list;
}

TEST(Selection, IsAscendingWithMinusOneBehind) {
  EXPECT_THAT(ordered({7, -1, 3, 5}), ElementsAre(3, 5, 7, -1));
  EXPECT_THAT(ordered({-1, -2, 3}), ElementsAre(3, -2, -1));
  EXPECT_THAT(ordered({}), ElementsAre());
  EXPECT_THAT(ordered({-1, -1}), ElementsAre(-1, -1));
}

TEST(Selection, AnyNumbersAreOrdered) {
  std::mt19937 random(5);
  for (const std::uint32_t range : {3U, 2048U, 131'072U, 1U << 24, 0U}) {
    for (const std::size_t count : {1U, 2U, 40U, 2048U}) {
      List list(count);
      for (std::int32_t& value : list) {
        value = static_cast<std::int32_t>(range == 0 ? random() : random() % range);
      }
      List expected = list;
      std::ranges::sort(expected, {}, [](std::int32_t p) { return static_cast<std::uint32_t>(p); });
      EXPECT_EQ(ordered(list), expected) << count << " below " << range;
    }
  }
}

std::string refusal(const List& list, std::int64_t own) {
  const Status status = check_selection(list, own);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  return status.message();
}

TEST(Selection, UpToTheTokensOwnPositionIsRight) {
  EXPECT_TRUE(check_selection(List{}, 0).ok());
  EXPECT_TRUE(check_selection(List{0}, 0).ok());
  EXPECT_TRUE(check_selection(List{-1, -1, -1}, 9).ok());
  EXPECT_TRUE(check_selection(List{0, 4, 9, -1}, 9).ok());
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_TRUE(check_selection(List{kMost}, std::int64_t{1} << 40).ok());
}

TEST(Selection, BadOnesAreNamed) {
  EXPECT_EQ(refusal({0, 4, 10}, 9),
            "selected[2] is 10, must be a position from 0 to 9, the token's own, or -1");
  EXPECT_THAT(refusal({-2}, 9), HasSubstr("selected[0] is -2, must be a position from 0 to 9"));
  EXPECT_EQ(refusal({3, 4, 4}, 9), "selected[2] is 4 again");
  EXPECT_EQ(refusal({3, -1, 4}, 9), "selected[2] is 4, must be -1 behind a -1");
  EXPECT_EQ(refusal({3, 2}, 9), "selected[1] is 2, must be above 3");
  EXPECT_THAT(refusal({-1, -2}, 9), HasSubstr("selected[1] is -2"));
}

}  // namespace
}  // namespace tributary::wire
