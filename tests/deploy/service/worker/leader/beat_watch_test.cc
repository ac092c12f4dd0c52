// Silence of workers, judged in simulated time.
#include "deploy/service/worker/leader/beat_watch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/interface/manual_clock.h"

namespace tributary {
namespace {

using std::chrono::hours, std::chrono::milliseconds, std::chrono::seconds;

constexpr Duration kLimit = seconds(10);
constexpr Duration kPeriod = milliseconds(500);

/// Rank 0 of a pool of two; the other worker's beats and rank 0's ticks are planned events.
class BeatWatchTest : public testing::Test {
 protected:
  void SetUp() override { inbox.post_joined({.rank = 1}); }

  void beat() {
    wire::Beat beat;
    beat.rank = 1;
    inbox.post_beat(beat);
  }
  /// Worker 1 beats twice a second until `end`, and rank 0 hears it at once.
  void beat_until(Time end) {
    for (Time t = clock.now(); t <= end; t += kPeriod) {
      clock.at(t, [this] { beat(); });
    }
  }
  void tick_until(Time end) {
    for (Time t = clock.now() + kPeriod; t <= end; t += kPeriod) {
      clock.at(t, [this] { watch.tick(clock.now()); });
    }
  }

  ManualClock clock{Time(hours(1))};
  const Time begin = clock.now();
  LeaderInbox inbox{2, clock};
  std::vector<std::string> stuck;
  [[nodiscard]] Status reason() const { return inbox.lost().at(0).reason; }
  BeatWatch watch{inbox, kLimit, kPeriod, begin,
                  [this](const Status& why) { stuck.push_back(why.message()); }};
};

TEST_F(BeatWatchTest, AWorkerThatIsSilentForLongerThanTheLimitIsLost) {
  beat_until(begin + seconds(3));
  tick_until(begin + seconds(25));
  clock.advance(seconds(13));
  EXPECT_TRUE(inbox.lost().empty()) << "silent for just the limit";
  clock.advance(kPeriod);
  EXPECT_EQ(reason().code(), ErrorCode::kWorkerFailed);
  EXPECT_EQ(reason().message(), "worker 1 has been silent for 10500 ms, limit 10000 ms");
  EXPECT_TRUE(stuck.empty());
  clock.advance(kLimit);
  EXPECT_TRUE(stuck.empty()) << "the leader may be in a round";
  clock.advance(kPeriod);  // it has not taken the loss for longer than a round may last
  EXPECT_EQ(stuck, std::vector<std::string>{reason().message()});
}

TEST_F(BeatWatchTest, AWorkerThatHasJoinedAndNeverBeatIsLost) {
  tick_until(begin + seconds(11));
  clock.advance(seconds(11));
  EXPECT_EQ(reason().code(), ErrorCode::kWorkerFailed);
}

TEST_F(BeatWatchTest, TimeInWhichRank0WasHeldUpDoesNotCount) {
  beat_until(begin + seconds(3));
  tick_until(begin + seconds(3));
  clock.advance(seconds(3));
  // Rank 0 stands still, for less and for much more than the limit. When it goes on, its tick comes
  // before what has arrived meanwhile is read.
  for (const Duration still : {Duration(seconds(8)), Duration(hours(2))}) {
    clock.advance(still);
    watch.tick(clock.now());
    ASSERT_TRUE(inbox.lost().empty());
    beat();
    tick_until(clock.now() + seconds(9));
    clock.advance(seconds(9));
    ASSERT_TRUE(inbox.lost().empty());
  }
  tick_until(clock.now() + seconds(2));  // and then it is silent to one who listens
  clock.advance(seconds(2));
  EXPECT_EQ(reason().message(), "worker 1 has been silent for 10500 ms, limit 10000 ms");
}

TEST_F(BeatWatchTest, AWorkerThatVanishedWhileRank0StoodStillIsLostALimitLater) {
  clock.advance(seconds(60));
  watch.tick(clock.now());
  tick_until(clock.now() + seconds(11));
  clock.advance(kLimit);
  EXPECT_TRUE(inbox.lost().empty());
  clock.advance(kPeriod);
  EXPECT_EQ(reason().message(), "worker 1 has been silent for 10500 ms, limit 10000 ms");
}

}  // namespace
}  // namespace tributary
