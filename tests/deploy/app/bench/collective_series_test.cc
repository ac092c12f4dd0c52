#include "deploy/app/bench/collective_series.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "comm/local/run_ranks.h"
#include "kernels/reference/reference_backend.h"
#include "tests/deploy/app/bench/device_rank.h"

namespace tributary::bench {
namespace {

using test::Carrier;
using test::DeviceRank;

constexpr int kSeriesRanks = 2;
constexpr std::size_t kBlockBytes = 4096;
constexpr std::array kKinds{CollectiveKind::kAllGather, CollectiveKind::kAllToAll};

TEST(CollectiveSeries, ATimeOnADeviceHasItsWorkInIt) {
  constexpr std::chrono::duration<double, std::micro> kWork(5000);
  for (const Carrier carrier : {Carrier::kOrdered, Carrier::kStaged}) {
    run_ranks(kSeriesRanks, [&](Communicator& host) {
      DeviceRank rank(host, carrier);
      for (const CollectiveKind kind : kKinds) {
        const std::uint64_t before = rank.device.exchange->traffic()[kind];
        {
          CollectiveSeries series(*rank.device.backend, host, *rank.device.exchange, kind,
                                  kBlockBytes);
          // The device reaches the collective after other work.
          rank.queue.add([&](Deadline) { std::this_thread::sleep_for(kWork); });
          EXPECT_GE(series.run(), kWork.count()) << collective_name(kind);
          EXPECT_TRUE(rank.queue.empty()) << collective_name(kind);
          rank.queue.add([](Deadline) {});
          series.call();
          EXPECT_TRUE(rank.queue.empty()) << collective_name(kind);
        }
        EXPECT_EQ(rank.device.exchange->traffic()[kind] - before, 2 * kBlockBytes)
            << collective_name(kind);
      }
      EXPECT_EQ(rank.queue.hazards(), 0);
    });
  }
}

TEST(CollectiveSeries, AFailureOnADeviceLeavesNothingUnderWay) {
  run_ranks(kSeriesRanks, [](Communicator& host) {
    DeviceRank rank(host, Carrier::kOrdered);
    auto& exchange = dynamic_cast<test::DeferredCommunicator&>(*rank.device.exchange);
    exchange.fail_after(1, Status(ErrorCode::kInternal, "the test said so"));
    {
      CollectiveSeries series(*rank.device.backend, host, exchange, CollectiveKind::kAllGather,
                              kBlockBytes);
      series.call();
      EXPECT_EQ(status_of([&] { series.call(); }).code(), ErrorCode::kInternal);
      EXPECT_TRUE(rank.queue.empty());
    }
    EXPECT_EQ(rank.queue.hazards(), 0);
  });
}

TEST(CollectiveSeries, InTheHostsMemoryOneCommunicatorIsEnough) {
  run_ranks(kSeriesRanks, [](Communicator& host) {
    const auto backend = make_reference_backend();
    for (const CollectiveKind kind : kKinds) {
      CollectiveSeries series(*backend, host, host, kind, kBlockBytes);
      EXPECT_GT(series.run(), 0) << collective_name(kind);
    }
    EXPECT_GT(host.traffic()[CollectiveKind::kAllToAll], 0U);
  });
}

}  // namespace
}  // namespace tributary::bench
