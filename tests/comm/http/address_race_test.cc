// The order and the times in which a name's addresses are tried, in simulated time.
#include "comm/http/address_race.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tributary {
namespace {

using namespace std::chrono_literals;

/// Asks the race whenever it wants to be asked; says what it did when.
class Track {
 public:
  explicit Track(std::size_t addresses) : race_(addresses) { run_until(0ms); }

  /// Nothing answers in the meantime.
  void run_until(std::chrono::milliseconds at) {
    const Time end = Time() + at;
    for (std::optional<Time> due = race_.wake(); due && *due <= end; due = race_.wake()) {
      now_ = std::max(now_, *due);
      const AddressRace::Move move = race_.next(now_);
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now_ - Time()).count();
      if (move.abandon) said_ += "-" + std::to_string(*move.abandon) + " ";
      if (move.start) said_ += std::to_string(*move.start) + "@" + std::to_string(ms) + " ";
      running_ += (move.start ? 1 : 0) - (move.abandon ? 1 : 0);
      EXPECT_LE(running_, 2);
    }
    now_ = end;
  }
  void fail(std::size_t address) {
    race_.failed(address);
    --running_;
    const auto at = std::chrono::duration_cast<std::chrono::milliseconds>(now_ - Time());
    run_until(at);
  }
  [[nodiscard]] const std::string& said() const { return said_; }
  [[nodiscard]] AddressRace& race() { return race_; }

 private:
  AddressRace race_;
  Time now_{};
  int running_ = 0;
  std::string said_;
};

TEST(AddressRace, TheSecondStartsWhenTheFirstHasHadAWhile) {
  Track track(2);
  track.run_until(249ms);
  EXPECT_EQ(track.said(), "0@0 ");
  track.run_until(1h);
  EXPECT_EQ(track.said(), "0@0 1@250 ");  // and both go on
  EXPECT_FALSE(track.race().lost());
}

TEST(AddressRace, AFailureStartsTheNextAtOnce) {
  Track track(3);
  track.run_until(10ms);
  track.fail(0);
  EXPECT_EQ(track.said(), "0@0 1@10 ");
  track.run_until(259ms);
  EXPECT_EQ(track.said(), "0@0 1@10 ");
  track.run_until(260ms);
  EXPECT_EQ(track.said(), "0@0 1@10 2@260 ");
  track.fail(2);
  EXPECT_FALSE(track.race().lost());
  track.fail(1);
  EXPECT_TRUE(track.race().lost());
}

TEST(AddressRace, TwoThatAreSilentGiveWayOneByOne) {
  Track track(4);
  track.run_until(1h);
  EXPECT_EQ(track.said(), "0@0 1@250 -0 2@2000 -1 3@2250 ");
  track.fail(2);
  EXPECT_FALSE(track.race().lost());
  track.fail(3);
  EXPECT_TRUE(track.race().lost());
}

TEST(AddressRace, OneAddressIsWaitedForAndNoneIsLostAtOnce) {
  Track one(1);
  one.run_until(1h);
  EXPECT_EQ(one.said(), "0@0 ");
  EXPECT_FALSE(one.race().lost());
  one.fail(0);
  EXPECT_TRUE(one.race().lost());
  EXPECT_TRUE(AddressRace(0).lost());
}

TEST(AddressRace, NothingIsDoneBeforeItsTime) {
  AddressRace race(2);
  EXPECT_TRUE(race.next(Time()).start.has_value());
  EXPECT_FALSE(race.next(Time()).start.has_value());
  EXPECT_FALSE(race.next(Time() + AddressRace::kHeadStart - 1ns).start.has_value());
  EXPECT_TRUE(race.next(Time() + AddressRace::kHeadStart).start.has_value());
}

TEST(AddressRace, FamiliesTakeTurns) {
  const auto turns = [](const std::vector<int>& addresses) {
    return take_turns(addresses,
                      [&](int address) { return (address < 10) == (addresses[0] < 10); });
  };
  EXPECT_EQ(turns({60, 61, 62, 4, 5}), (std::vector{60, 4, 61, 5, 62}));
  EXPECT_EQ(turns({4, 60, 61}), (std::vector{4, 60, 61}));
  EXPECT_EQ(turns({60, 4, 5, 61}), (std::vector{60, 4, 61, 5}));
  EXPECT_EQ(turns({4, 5}), (std::vector{4, 5}));
}

}  // namespace
}  // namespace tributary
