// The measurements on a device that does nothing until somebody waits for it.
#include "deploy/app/bench/unit_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "comm/local/run_ranks.h"
#include "deploy/app/bench/decode_case.h"
#include "tests/deploy/app/bench/device_rank.h"
#include "tests/sanitized.h"

namespace tributary::bench {
namespace {

using test::Carrier;
using test::DeviceRank;

constexpr int kCostRanks = 2;
constexpr double kLineSeconds = 1e-6;  // the fewest runs possible
/// Runs of a line: two for warm-up, and twenty.
constexpr int kLineRuns = 22;

/// The sum of all costs whose names begin with `begin`.
double sum_of(const MachineCosts& costs, std::string_view begin) {
  double sum = 0;
  for_each_cost(costs, [&](std::string_view name, double value) {
    EXPECT_TRUE(std::isfinite(value) && value >= 0) << name << " is " << value;
    if (name.starts_with(begin)) sum += value;
  });
  return sum;
}

/// Expects that `measurement` waits for each of its runs and sets constants whose names begin with
/// `costs_begin`. It returns its number of lines of runs.
void expect_waits(const std::function<int(Backend&, Communicator&, MachineCosts&)>& measurement,
                  std::string_view costs_begin) {
  run_ranks(kCostRanks, [&](Communicator& host) {
    DeviceRank rank(host, Carrier::kOrdered);
    MachineCosts costs;
    const int lines = measurement(*rank.device.backend, host, costs);
    EXPECT_GE(rank.queue.waits(), lines * kLineRuns);
    EXPECT_TRUE(rank.queue.empty());
    EXPECT_EQ(rank.queue.hazards(), 0);
    EXPECT_GT(sum_of(costs, costs_begin), 0) << costs_begin;
  });
}

TEST(UnitCosts, RowsAreReadAgainBehind128MiBOfOthers) {
  const RowLayout row{RowFormat::kBF16, 448, 64};  // 1 KiB
  EXPECT_EQ(layers_from_memory(1 << 17, row), 1);
  EXPECT_EQ(layers_from_memory((1 << 17) - 1, row), 2);
  EXPECT_EQ(layers_from_memory(1 << 10, row), 128);
  EXPECT_EQ(layers_from_memory(1, row), 256);
  EXPECT_EQ(layers_from_memory(1 << 20, row), 1);
}

TEST(UnitCosts, AttentionOnADeviceIsWaitedFor) {
  expect_waits(
      [](Backend& backend, Communicator& host, MachineCosts& costs) {
        const auto lines = measure_attend(backend, host, RowFormat::kBF16, kLineSeconds, costs);
        for (const AttendLine& line : lines) {
          EXPECT_TRUE(std::isfinite(line.us) && line.us > 0);
          EXPECT_TRUE(std::isfinite(line.gflops) && line.gflops > 0);
          EXPECT_TRUE(std::isfinite(line.gb_s) && line.gb_s > 0);
        }
        EXPECT_GE(lines.size(), 18U);
        return static_cast<int>(lines.size());
      },
      "attend_");
}

TEST(UnitCosts, MergesRecordsAndProjectionsOnADeviceAreWaitedFor) {
  expect_waits(
      [](Backend& backend, Communicator& host, MachineCosts& costs) {
        measure_merge(backend, host, kLineSeconds, costs);
        return 4;
      },
      "merge_");
  expect_waits(
      [](Backend& backend, Communicator& host, MachineCosts& costs) {
        measure_records(backend, host, kLineSeconds, costs);
        return 4;
      },
      "record_");
  if (test::kSanitized) return;  // a product of 128 MiB takes long there
  expect_waits(
      [](Backend& backend, Communicator& host, MachineCosts& costs) {
        measure_projection(backend, host, kLineSeconds, costs);
        return 2;
      },
      "weight_");
}

TEST(UnitCosts, TheExchangeIsMeasuredInTheDevicesMemory) {
  for (const Carrier carrier : {Carrier::kOrdered, Carrier::kStaged}) {
    run_ranks(kCostRanks, [&](Communicator& host) {
      DeviceRank rank(host, carrier);
      MachineCosts costs;
      const auto lines =
          measure_exchange(*rank.device.backend, host, *rank.device.exchange, kLineSeconds, costs);
      ASSERT_EQ(lines.size(), 10U);
      std::uint64_t bytes = 0;
      for (const ExchangeLine& line : lines) {
        EXPECT_TRUE(std::isfinite(line.us) && line.us > 0) << line.collective << line.bytes;
        EXPECT_TRUE(std::isfinite(line.gb_s) && line.gb_s > 0) << line.collective << line.bytes;
        bytes += line.bytes;
      }
      const Traffic& traffic = rank.device.exchange->traffic();
      EXPECT_GE(traffic[CollectiveKind::kAllGather] + traffic[CollectiveKind::kAllToAll],
                bytes * 21);
      EXPECT_TRUE(rank.queue.empty());
      EXPECT_EQ(rank.queue.hazards(), 0);
      EXPECT_GT(sum_of(costs, "all_gather_"), 0);
      EXPECT_GT(sum_of(costs, "all_to_all_"), 0);
      EXPECT_GT(sum_of(costs, "network_"), 0);
    });
  }
}

TEST(UnitCosts, LatenessIsThatOfTheExchange) {
  run_ranks(kCostRanks, [](Communicator& host) {
    DeviceRank rank(host, Carrier::kOrdered);
    MachineCosts costs;
    measure_lateness(*rank.device.backend, host, *rank.device.exchange, costs);
    EXPECT_GT(rank.device.exchange->traffic()[CollectiveKind::kAllGather], 0U);
    EXPECT_GT(costs.wait_free_us, 0);
    EXPECT_LE(costs.wait_late_share, 1);
    EXPECT_GE(sum_of(costs, "wait_late_"), 0);
    EXPECT_EQ(rank.queue.hazards(), 0);
  });
}

TEST(UnitCosts, OneWorkerHasNoExchange) {
  run_ranks(1, [](Communicator& host) {
    DeviceRank rank(host, Carrier::kStaged);
    MachineCosts costs;
    EXPECT_TRUE(
        measure_exchange(*rank.device.backend, host, *rank.device.exchange, kLineSeconds, costs)
            .empty());
    EXPECT_EQ(sum_of(costs, "all_"), 0);
  });
}

}  // namespace
}  // namespace tributary::bench
