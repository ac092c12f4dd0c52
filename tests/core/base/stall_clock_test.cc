#include "core/base/stall_clock.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

using std::chrono::milliseconds;

TEST(StallClock, ALateTickBeginsAnew) {
  const Time start{std::chrono::hours(1)};
  StallClock clock(milliseconds(250), start);
  EXPECT_EQ(clock.tick(start + milliseconds(250)), milliseconds(0));
  EXPECT_EQ(clock.tick(start + milliseconds(700)), milliseconds(0));  // by less than a period
  EXPECT_EQ(clock.awake_since(), start);
  EXPECT_EQ(clock.tick(start + milliseconds(3'950)), milliseconds(3'000));
  EXPECT_EQ(clock.awake_since(), start + milliseconds(3'950));
  EXPECT_EQ(clock.tick(start + milliseconds(4'200)), milliseconds(0));
  EXPECT_EQ(clock.awake_since(), start + milliseconds(3'950));
}

}  // namespace
}  // namespace tributary
