#include "deploy/bench/collective_series.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/local/run_ranks.h"
#include "kernels/reference/reference_backend.h"
#include "tests/deploy/bench/device_rank.h"

namespace tributary::bench {
namespace {

using test::Carrier;
using test::DeviceRank;

constexpr int kSeriesRanks = 2;
constexpr std::size_t kBlockBytes = 4096;

std::uint64_t sent(const Communicator& communicator, Collective collective) {
  const Traffic& traffic = communicator.traffic();
  switch (collective) {
    case Collective::kBroadcast:
      return traffic.broadcast_bytes;
    case Collective::kAllGather:
      return traffic.all_gather_bytes;
    case Collective::kAllToAll:
      return traffic.all_to_all_bytes;
  }
  return 0;
}

TEST(CollectiveSeries, ATimeOnADeviceHasItsWorkInIt) {
  constexpr std::chrono::duration<double, std::micro> kWork(5000);
  for (const Carrier carrier : {Carrier::kOrdered, Carrier::kStaged}) {
    run_ranks(kSeriesRanks, [&](Communicator& host) {
      DeviceRank rank(host, carrier);
      for (const Collective collective : kCollectives) {
        const std::uint64_t before = sent(*rank.device.exchange, collective);
        {
          CollectiveSeries series(*rank.device.backend, host, *rank.device.exchange, collective,
                                  kBlockBytes);
          // The device comes to the collective after other work.
          rank.queue.add([&](Deadline) { std::this_thread::sleep_for(kWork); });
          EXPECT_GE(series.run(), kWork.count()) << collective_name(collective);
          EXPECT_TRUE(rank.queue.empty()) << collective_name(collective);
          rank.queue.add([](Deadline) {});
          series.call();
          EXPECT_TRUE(rank.queue.empty()) << collective_name(collective);
        }
        // Of a broadcast only its root sends.
        const bool sends = collective != Collective::kBroadcast || host.rank() == 0;
        EXPECT_EQ(sent(*rank.device.exchange, collective) - before, sends ? 2 * kBlockBytes : 0)
            << collective_name(collective);
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
      CollectiveSeries series(*rank.device.backend, host, exchange, Collective::kAllGather,
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
    for (const Collective collective : kCollectives) {
      CollectiveSeries series(*backend, host, host, collective, kBlockBytes);
      EXPECT_GT(series.run(), 0) << collective_name(collective);
    }
    EXPECT_GT(host.traffic().all_to_all_bytes, 0U);
  });
}

}  // namespace
}  // namespace tributary::bench
