#include "core/base/awake_wait.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

using std::chrono::hours, std::chrono::milliseconds, std::chrono::seconds;

const Time kStart{hours(1)};

/// The waiter looks when it says that it will, from `now` on; returns when its wait is over.
Time end_of_wait(AwakeWait& patience, Time now) {
  while (!patience.over(now)) now = patience.next_look(now);
  return now;
}

TEST(AwakeWait, AWaiterThatRunsWaitsUntilTheDeadline) {
  AwakeWait patience(Deadline(kStart + milliseconds(10'200), seconds(2)), kStart);
  EXPECT_EQ(end_of_wait(patience, kStart), kStart + milliseconds(10'200));
}

TEST(AwakeWait, ADeadlineThatHasPassedIsOverAtOnceUnlessItHasAHearing) {
  AwakeWait none(Deadline(kStart), kStart + seconds(5));
  EXPECT_TRUE(none.over(kStart + seconds(5)));
  AwakeWait patience(Deadline(kStart, seconds(2)), kStart + seconds(5));
  EXPECT_EQ(end_of_wait(patience, kStart + seconds(5)), kStart + seconds(7));
}

TEST(AwakeWait, AWaiterThatWasHeldUpListensAnew) {
  AwakeWait patience(Deadline(kStart + seconds(10), seconds(2)), kStart);
  EXPECT_FALSE(patience.over(kStart + seconds(1)));
  EXPECT_FALSE(patience.over(kStart + hours(3)));
  EXPECT_EQ(end_of_wait(patience, kStart + hours(3)), kStart + hours(3) + seconds(2));
}

TEST(AwakeWait, AHoldUpLongBeforeTheDeadlineChangesNothing) {
  AwakeWait patience(Deadline(kStart + seconds(10), seconds(2)), kStart);
  EXPECT_FALSE(patience.over(kStart + seconds(7)));
  EXPECT_EQ(end_of_wait(patience, kStart + seconds(7)), kStart + seconds(10));
}

TEST(AwakeWait, ALateWakeOfLessThanASecondIsNoHoldUp) {
  AwakeWait patience(Deadline(kStart + seconds(10), seconds(2)), kStart);
  Time now = kStart;
  while (!patience.over(now)) now = patience.next_look(now) + milliseconds(450);
  EXPECT_LT(now, kStart + seconds(11));
}

}  // namespace
}  // namespace tributary
