#include "core/interface/clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "core/interface/condition.h"
#include "core/interface/manual_clock.h"
#include "core/interface/thread.h"

namespace tributary {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Time kBegin{hours(1)};

class ManualClockTest : public ::testing::Test {
 protected:
  ManualClock clock_{kBegin};
  std::mutex mutex_;
  Condition changed_;
};

TEST_F(ManualClockTest, AWaitMovesItToTheEndOfTheWait) {
  std::unique_lock lock(mutex_);
  EXPECT_FALSE(clock_.wait_until(changed_, lock, kBegin + hours(100), [] { return false; }));
  EXPECT_EQ(clock_.now(), kBegin + hours(100));
  EXPECT_TRUE(lock.owns_lock());
}

TEST_F(ManualClockTest, AWaitInThePastLeavesItWhereItIs) {
  std::unique_lock lock(mutex_);
  clock_.wait_until(changed_, lock, kBegin - seconds(1));
  EXPECT_EQ(clock_.now(), kBegin);
}

TEST_F(ManualClockTest, AWaitEndsAtTheEventThatItWaitsFor) {
  bool posted = false;
  clock_.after(seconds(2), [&] {
    const std::lock_guard lock(mutex_);  // an event may post to whoever waits
    posted = true;
  });
  clock_.after(seconds(9), [] { FAIL() << "is after the wait"; });
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(clock_.wait_until(changed_, lock, kBegin + seconds(5), [&] { return posted; }));
  EXPECT_EQ(clock_.now(), kBegin + seconds(2));
}

TEST_F(ManualClockTest, EventsRunInTheirOrderAndMayPlanOthers) {
  std::string order;
  clock_.after(milliseconds(3), [&] { order += 'c'; });
  clock_.after(milliseconds(1), [&] {
    order += 'a';
    clock_.after(milliseconds(1), [&] { order += 'b'; });
  });
  clock_.after(milliseconds(3), [&] { order += 'd'; });
  clock_.at(kBegin - seconds(1), [&] { order += '0'; });
  clock_.advance(milliseconds(3));
  EXPECT_EQ(order, "0abcd");
  EXPECT_EQ(clock_.now(), kBegin + milliseconds(3));
}

TEST(SteadyClock, AWaitEndsAtItsTimeOrWhereItsConditionHolds) {
  Clock& clock = steady_clock();
  std::mutex mutex;
  Condition changed;
  std::unique_lock lock(mutex);
  const Time begin = clock.now();
  EXPECT_TRUE(clock.wait_until(changed, lock, begin + hours(1), [] { return true; }));
  EXPECT_FALSE(clock.wait_until(changed, lock, begin + milliseconds(1), [] { return false; }));
  EXPECT_GE(clock.now(), begin + milliseconds(1));
}

class ClockThreads : public ::testing::TestWithParam<bool> {
 protected:
  ManualClock manual_;
  Clock& clock_ = GetParam() ? static_cast<Clock&>(manual_) : steady_clock();
};

TEST_P(ClockThreads, AThreadTellsAnotherWhichWaitsWithoutATime) {
  std::mutex mutex;
  Condition changed;
  bool asked = false;
  bool answered = false;
  const Time begin = manual_.now();
  changed.notify_all();
  EXPECT_EQ(changed.notifications(), 0U) << "counted since somebody asks";
  Thread thread(clock_, [&] {
    std::unique_lock lock(mutex);
    clock_.wait(changed, lock, [&] { return asked; });
    answered = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  asked = true;
  changed.notify_all();
  clock_.wait(changed, lock, [&] { return answered; });
  lock.unlock();
  thread.join();
  thread.join();
  EXPECT_EQ(changed.notifications(), 2U);
  EXPECT_EQ(manual_.now(), begin);
}

TEST_P(ClockThreads, ItsEndIsWaitedFor) {
  std::atomic<bool> ended = false;
  {
    const Thread thread(clock_, [&] { ended = true; });
  }
  EXPECT_TRUE(ended);
}

INSTANTIATE_TEST_SUITE_P(Clocks, ClockThreads, ::testing::Bool());

TEST(Deadline, IsJudgedByTheTimeThatIsPassedIn) {
  const Deadline deadline = Deadline::after(kBegin, seconds(2));
  EXPECT_FALSE(deadline.expired(kBegin + seconds(2) - Duration(1)));
  EXPECT_TRUE(deadline.expired(kBegin + seconds(2)));
  EXPECT_EQ(seconds_between(kBegin, deadline.when()), 2.0);
}

}  // namespace
}  // namespace tributary
