#include "deploy/service/worker/leader/pool_meter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>
#include <vector>

namespace tributary::test {
namespace {

using std::chrono::seconds;

class PoolMeterTest : public testing::Test {
 protected:
  void round_at(Time now, std::vector<std::int64_t> rows) {
    RoundReport report;
    report.worker_rows.assign(rows.begin(), rows.end());
    report.members = static_cast<int>(rows.size());
    meter_.round_ended(report, 1, 0.001, 1, now);
  }
  [[nodiscard]] double balance(Time now) const {
    Heartbeat heartbeat;
    meter_.fill(heartbeat, {}, now);
    return heartbeat.metrics.balance;
  }
  PoolMeter meter_;
  const Time begin_ = Time(std::chrono::hours(1));
};

TEST_F(PoolMeterTest, BalanceIsThatOfAllRoundsOfTheLastHalfMinute) {
  EXPECT_EQ(balance(begin_), 0);
  round_at(begin_, {0, 0});
  EXPECT_EQ(balance(begin_), 0) << "rounds without rows say nothing";
  round_at(begin_, {300, 100});
  EXPECT_DOUBLE_EQ(balance(begin_), 1.5);
  // Each round waits for its own busiest worker; long ones weigh more.
  round_at(begin_ + seconds(14), {100, 700});
  EXPECT_DOUBLE_EQ(balance(begin_ + seconds(14)), (300 + 700) / (200. + 400.));
  round_at(begin_ + seconds(20), {500, 500});
  EXPECT_DOUBLE_EQ(balance(begin_ + seconds(20)), (300 + 700 + 500) / (200. + 400. + 500.));
  round_at(begin_ + seconds(35), {200, 200});
  EXPECT_DOUBLE_EQ(balance(begin_ + seconds(35)), 1) << "the first ones are forgotten";
}

TEST_F(PoolMeterTest, CountersAreOfAllRounds) {
  RoundReport report;
  report.exchanged_bytes = 700;
  meter_.round_ended(report, 3, 0.5, 1, begin_);
  report.exchanged_bytes = 40;
  report.status = Status(ErrorCode::kWorkerFailed, "rank 1 is gone");
  meter_.round_ended(report, 1, 0.25, 1, begin_);
  Heartbeat heartbeat;
  meter_.fill(heartbeat, {}, begin_);
  EXPECT_EQ(heartbeat.metrics.exchanged_bytes, 740U);
  EXPECT_EQ(heartbeat.metrics.rounds, 2U);
  EXPECT_EQ(heartbeat.metrics.failed_rounds, 1U);
}

TEST_F(PoolMeterTest, AnIdlePoolHasNoBalance) {
  round_at(begin_, {300, 100});
  EXPECT_DOUBLE_EQ(balance(begin_ + seconds(29)), 1.5);
  EXPECT_EQ(balance(begin_ + seconds(30)), 0);
  round_at(begin_ + seconds(100), {100, 100});
  EXPECT_DOUBLE_EQ(balance(begin_ + seconds(100)), 1);
}

}  // namespace
}  // namespace tributary::test
