// Threads that take turns: a seed repeats its run, time moves when all wait, and who was killed is
// never heard of again.
#include "core/interface/simulated_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/interface/condition.h"
#include "core/interface/thread.h"

namespace tributary {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Time kOutset{hours(1)};

/// Waits for nothing but the time.
void pass(Clock& clock, Duration duration) {
  std::mutex mutex;
  Condition nothing;
  std::unique_lock lock(mutex);
  EXPECT_FALSE(clock.wait_until(nothing, lock, clock.now() + duration, [] { return false; }));
}

/// Three threads that say their letter three times each, a millisecond apart.
std::string letters(std::uint64_t seed, std::uint64_t* digest = nullptr) {
  SimulatedClock clock(seed, kOutset, {});
  std::string said;
  clock.run([&] {
    std::vector<std::unique_ptr<Thread>> threads;
    for (const char letter : {'a', 'b', 'c'}) {
      threads.push_back(std::make_unique<Thread>(clock, [&clock, &said, letter] {
        for (int i = 0; i < 3; ++i) {
          said += letter;
          pass(clock, milliseconds(1));
        }
      }));
    }
  });
  EXPECT_EQ(clock.now(), kOutset + milliseconds(3));
  if (digest != nullptr) *digest = clock.digest();
  return said;
}

TEST(SimulatedClock, ASeedRepeatsItsRunAndOthersHaveOtherOrders) {
  std::set<std::string> orders;
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::uint64_t first = 0;
    std::uint64_t again = 0;
    const std::string said = letters(seed, &first);
    EXPECT_EQ(letters(seed, &again), said);
    EXPECT_EQ(again, first);
    orders.insert(said);
    digests.insert(first);
  }
  EXPECT_GE(orders.size(), 15U);
  EXPECT_EQ(digests.size(), 20U);
}

TEST(SimulatedClock, ANotifiedThreadGoesOnAtOnceAndALateOneAtItsTime) {
  SimulatedClock clock(1, kOutset, {});
  std::mutex mutex;
  Condition changed;
  bool told = false;
  clock.run([&] {
    const Thread teller(clock, [&] {
      pass(clock, seconds(2));
      const std::lock_guard lock(mutex);
      told = true;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    EXPECT_FALSE(clock.wait_until(changed, lock, kOutset + seconds(1), [&] { return told; }));
    EXPECT_EQ(clock.now(), kOutset + seconds(1));
    EXPECT_TRUE(clock.wait_until(changed, lock, kOutset + hours(9), [&] { return told; }));
    EXPECT_EQ(clock.now(), kOutset + seconds(2));
  });
}

TEST(SimulatedClock, AThreadThatNobodyTellsDoesNotSeeWhatHasChanged) {
  SimulatedClock clock(1, kOutset, {});
  std::mutex mutex;
  Condition changed;
  bool there = false;
  clock.run([&] {
    const Thread quiet(clock, [&] {
      pass(clock, seconds(2));
      there = true;
    });
    std::unique_lock lock(mutex);
    EXPECT_TRUE(clock.wait_until(changed, lock, kOutset + seconds(5), [&] { return there; }));
    EXPECT_EQ(clock.now(), kOutset + seconds(5)) << "a lost wake costs the whole wait";
  });
}

TEST(SimulatedClock, OnesProcessIsHeldUpAndTheOthersGoOn) {
  SimulatedClock clock(
      3, kOutset, [](int process) -> Duration { return process == 7 ? seconds(10) : seconds(0); });
  Time slow{};
  Time quick{};
  clock.run([&] {
    std::unique_ptr<Thread> held;
    clock.as_process(7,
                     [&] { held = std::make_unique<Thread>(clock, [&] { slow = clock.now(); }); });
    const Thread other(clock, [&] { quick = clock.now(); });
  });
  EXPECT_EQ(slow, kOutset + seconds(10));
  EXPECT_EQ(quick, kOutset);
}

TEST(SimulatedClock, WhoWasKilledNeverGoesOn) {
  SimulatedClock clock(4, kOutset, {});
  int lived = 0;
  clock.run([&] {
    clock.as_process(1, [&] {
      clock
          .start([&clock, &lived] {
            while (true) {
              pass(clock, seconds(1));
              ++lived;
            }
          })
          .detach();
    });
    pass(clock, milliseconds(3500));
    clock.kill(1);
    pass(clock, seconds(10));
  });
  EXPECT_EQ(lived, 3);
}

TEST(SimulatedClockDeathTest, AWaitForEverIsNamed) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        SimulatedClock clock(5, kOutset, {});
        clock.run([&] {
          std::mutex mutex;
          Condition never;
          std::unique_lock lock(mutex);
          clock.wait(never, lock, [] { return false; });
        });
      },
      "all threads wait for ever.*\n.*thread 0 of process 0: waits");
}

TEST(SimulatedClockDeathTest, ALoopWithoutAWaitIsNamed) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        SimulatedClock clock(6, kOutset, {});
        clock.run([&] {
          while (clock.now() < kOutset + hours(1)) {
          }
        });
      },
      "a thread runs on without a wait");
}

}  // namespace
}  // namespace tributary
